package printer

import (
	"bytes"
	"io"
)

// Indenting is a writer that prefixes each line.
type Indenting struct {
	Out    io.Writer
	Prefix string
	inside bool // in the middle of a line
}

// Write implements io.Writer.
func (i *Indenting) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, c := range p {
		if !i.inside && c != '\n' {
			b.WriteString(i.Prefix)
		}
		i.inside = c != '\n'
		b.WriteByte(c)
	}
	_, err := i.Out.Write(b.Bytes())
	return len(p), err
}
