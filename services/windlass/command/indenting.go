package command

import (
	"bytes"
	"io"
)

// indenting is a writer that prefixes each line.
type indenting struct {
	out    io.Writer
	prefix string
	inside bool // in the middle of a line
}

// Write implements io.Writer.
func (i *indenting) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, c := range p {
		if !i.inside && c != '\n' {
			b.WriteString(i.prefix)
		}
		i.inside = c != '\n'
		b.WriteByte(c)
	}
	_, err := i.out.Write(b.Bytes())
	return len(p), err
}
