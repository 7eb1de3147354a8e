// Package table prints objects as rows and columns, as kubectl does: the columns come from the kind's descriptor, and
// ages have kubectl's form.
package table

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	minWidth = 6 // of a column with its padding, as in kubectl
	padding  = 3 // between columns
)

// Writer prints rows in columns. The columns are as wide as the widest cell so far, so that the rows of a watch stay
// below each other.
type Writer struct {
	out    io.Writer
	indent string
	widths []int
}

// New returns a Writer.
func New(out io.Writer) *Writer { return &Writer{out: out} }

// NewIndented returns a Writer whose lines begin with indent.
func NewIndented(out io.Writer, indent string) *Writer { return &Writer{out: out, indent: indent} }

// Print prints rows; each has a cell for every column.
func (w *Writer) Print(rows ...[]string) error {
	clean := make([][]string, len(rows))
	for r, row := range rows {
		clean[r] = make([]string, len(row))
		for i, cell := range row {
			clean[r][i] = plain(cell)
			if i == len(w.widths) {
				w.widths = append(w.widths, minWidth)
			}
			w.widths[i] = max(w.widths[i], utf8.RuneCountInString(clean[r][i])+padding)
		}
	}
	var b strings.Builder
	for _, row := range clean {
		line := w.indent
		for i, cell := range row {
			line += cell + strings.Repeat(" ", w.widths[i]-utf8.RuneCountInString(cell))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w.out, b.String())
	return err
}

// plain returns the first line of a cell, without anything that a terminal would obey.
func plain(cell string) string {
	if i := strings.IndexAny(cell, "\n\r\f"); i >= 0 {
		cell = cell[:i] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, cell)
}
