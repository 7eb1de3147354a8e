package terminal

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

func TestWhatATerminalObeysIsShown(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 世界\n\tnext\n": "plain é 世界\n\tnext\n",
		"\x1b[31mred\x1b[0m":   "^[[31mred^[[0m",
		"\x1b]0;title\x07":     "^[]0;title^G",
		"a\rb\x00\b\x7f":       "a^Mb^@^H^?",
		"\u009b2J":             `\u009b2J`,
		"\u202ecba\u2069":      `\u202ecba\u2069`,
		"\x9b2J":               "\ufffd2J",
	} {
		var out bytes.Buffer
		n, err := New(&out).Write([]byte(text))
		if err != nil || n != len(text) || out.String() != want {
			t.Errorf("%q is written as %q (%d bytes, %v), want %q", text, out.String(), n, err, want)
		}
	}
}

func TestNothingThatATerminalObeysIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		got := Escape(text)
		for _, r := range strings.NewReplacer("\n", "", "\t", "").Replace(got) {
			if unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("%q keeps %q", got, r)
			}
		}
		if Escape(got) != got {
			t.Fatalf("%q is escaped again", got)
		}
	})
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAWriterThatFailsIsSaid(t *testing.T) {
	if n, err := New(closed{}).Write([]byte("x")); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestRawIsWhatIsBelow(t *testing.T) {
	if Raw(New(os.Stdout)) != os.Stdout || Raw(os.Stdout) != os.Stdout {
		t.Error("another writer")
	}
}
