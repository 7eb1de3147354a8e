// Package progress prints the steps of a long operation.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/windlass-dev/windlass/services/windlass/terminal"
	"golang.org/x/term"
)

// Steps prints the steps of a long operation with their durations, and on a terminal also what a step waits for.
type Steps struct {
	out      io.Writer
	terminal bool
	began    time.Time
	step     string
	stepped  time.Time
	told     time.Time
	waiting  string
}

// New returns Steps that begin now.
func New(out io.Writer) *Steps {
	out = terminal.Raw(out) // it moves the cursor
	f, ok := out.(*os.File)
	now := time.Now()
	return &Steps{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), began: now, stepped: now}
}

// Begin starts a step.
func (s *Steps) Begin(step string) {
	s.step, s.stepped, s.told, s.waiting = step, time.Now(), time.Now(), ""
	s.Wait("")
}

// quiet is the interval between progress lines of a step when the output is not a terminal.
const quiet = 5 * time.Second

// Wait prints what the step waits for.
func (s *Steps) Wait(what string) {
	what = terminal.Escape(what)
	if s.terminal {
		fmt.Fprintf(s.out, "\r\033[K  %-18s %5.1f s  %s", s.step, time.Since(s.stepped).Seconds(), what)
		return
	}
	if what != "" && time.Since(s.told) >= quiet {
		s.told = time.Now()
		fmt.Fprintf(s.out, "  %-18s ...      %s\n", s.step, what)
	}
}

// Done ends a step and prints its outcome.
func (s *Steps) Done(outcome string) {
	if s.terminal {
		fmt.Fprint(s.out, "\r\033[K")
	}
	fmt.Fprintf(s.out, "  %-18s %5.2f s  %s\n", s.step, time.Since(s.stepped).Seconds(), terminal.Escape(outcome))
}

// Total returns the time since New.
func (s *Steps) Total() time.Duration { return time.Since(s.began) }
