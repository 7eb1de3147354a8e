// Package terminal keeps texts of others, such as names and messages of objects, from controlling a user's terminal.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Writer shows what a terminal would obey instead of passing it on.
type Writer struct{ raw io.Writer }

// New returns a Writer. Runes must not be split between writes.
func New(raw io.Writer) *Writer { return &Writer{raw} }

func (w *Writer) Write(b []byte) (int, error) {
	if _, err := w.raw.Write([]byte(Escape(string(b)))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Raw returns the writer below a Writer, and any other as it is: for what programs read, for streams of containers, and
// for what moves the cursor.
func Raw(w io.Writer) io.Writer {
	if t, ok := w.(*Writer); ok {
		return t.raw
	}
	return w
}

// Escape returns a text with ^[ for an escape character, the like for the other control characters below 128 but tabs
// and newlines, and \u009b or \u202e for those above and for what changes the direction of a text.
func Escape(text string) string {
	if strings.IndexFunc(text, obeyed) < 0 {
		return strings.ToValidUTF8(text, string(unicode.ReplacementChar))
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !obeyed(r):
			b.WriteRune(r)
		case r <= unicode.MaxASCII:
			b.WriteString("^" + string(r^0x40)) // the usual notation: ^[ is the escape character, ^? is delete
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func obeyed(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
