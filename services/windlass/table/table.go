// Package table prints objects as rows and columns, as kubectl does: the columns come from the kind's descriptor, and
// ages have kubectl's form.
package table

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

const (
	minWidth  = 6  // of a column with its padding, as in kubectl
	padding   = 3  // between columns
	narrowest = 30 // that a text is folded to
)

// Writer prints rows in columns. The columns are as wide as the widest cell so far, so that the rows of a watch stay
// below each other.
type Writer struct {
	out    io.Writer
	indent string
	widths []int
	within int // columns of a line; 0 for any number
}

// New returns a Writer.
func New(out io.Writer) *Writer { return &Writer{out: out} }

// NewIndented returns a Writer whose lines begin with indent.
func NewIndented(out io.Writer, indent string) *Writer { return &Writer{out: out, indent: indent} }

// NewWithin returns a Writer that folds the last cell of a row, so that no line is longer than within columns. That
// cell keeps narrowest columns or more.
func NewWithin(out io.Writer, within int) *Writer { return &Writer{out: out, within: within} }

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
			if i == len(row)-1 && w.within > 0 {
				before := utf8.RuneCountInString(line)
				cell = strings.Join(Fold(cell, w.within-before), "\n"+strings.Repeat(" ", before))
				line += cell
				break
			}
			line += cell + strings.Repeat(" ", w.widths[i]-utf8.RuneCountInString(cell))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w.out, b.String())
	return err
}

// Fold returns a text in lines of at most width columns, or narrowest if that is more. Longer words stay whole.
func Fold(text string, width int) []string {
	width = max(width, narrowest)
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// plain returns the first line of a cell; what a terminal would obey is shown, and counts for the width.
func plain(cell string) string {
	if i := strings.IndexAny(cell, "\n\r\f"); i >= 0 {
		cell = cell[:i] + "..."
	}
	return terminal.Escape(strings.ReplaceAll(cell, "\t", " "))
}
