package waiting

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/windlass-dev/windlass/services/windlass/terminal"
	"golang.org/x/term"
)

// sayAfter is how long an operation takes before a notice is printed.
const sayAfter = time.Second

// notice prints what an operation waits for once it takes longer than a second: on a terminal in one line that is
// rewritten, otherwise in a new line each time that the reason changes.
type notice struct {
	out      io.Writer
	terminal bool
	subject  string
	began    time.Time
	told     string
	open     bool // a line on the terminal that must be cleared
}

func newNotice(out io.Writer, subject string) *notice {
	out = terminal.Raw(out) // it moves the cursor
	f, ok := out.(*os.File)
	return &notice{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), subject: subject, began: time.Now()}
}

// due reports whether it is time to print.
func (n *notice) due() bool { return time.Since(n.began) >= sayAfter }

// say prints what the operation waits for.
func (n *notice) say(what string) {
	if !n.due() {
		return
	}
	text := "waiting for " + n.subject
	if what != "" {
		text += ": " + what
	}
	text = terminal.Escape(text)
	switch {
	case n.terminal:
		n.open = true
		fmt.Fprintf(n.out, "\r\033[K%s (%.0f s)", text, time.Since(n.began).Seconds())
	case text != n.told:
		fmt.Fprintln(n.out, text)
	}
	n.told = text
}

// end clears the line on the terminal.
func (n *notice) end() {
	if n.open {
		fmt.Fprint(n.out, "\r\033[K")
		n.open = false
	}
}
