package command

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// steps prints the steps of a long operation with their durations, and on a terminal also what a step waits for.
type steps struct {
	out      io.Writer
	terminal bool
	began    time.Time
	step     string
	stepped  time.Time
	told     time.Time
	waiting  string
}

func newSteps(out io.Writer) *steps {
	f, ok := out.(*os.File)
	now := time.Now()
	return &steps{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), began: now, stepped: now}
}

// begin starts a step.
func (s *steps) begin(step string) {
	s.step, s.stepped, s.told, s.waiting = step, time.Now(), time.Now(), ""
	s.wait("")
}

// quiet is the interval between progress lines of a step when the output is not a terminal.
const quiet = 5 * time.Second

// wait prints what the step waits for.
func (s *steps) wait(what string) {
	if s.terminal {
		fmt.Fprintf(s.out, "\r\033[K  %-18s %5.1f s  %s", s.step, time.Since(s.stepped).Seconds(), what)
		return
	}
	if what != "" && time.Since(s.told) >= quiet {
		s.told = time.Now()
		fmt.Fprintf(s.out, "  %-18s ...      %s\n", s.step, what)
	}
}

// done ends a step and prints its outcome.
func (s *steps) done(outcome string) {
	if s.terminal {
		fmt.Fprint(s.out, "\r\033[K")
	}
	fmt.Fprintf(s.out, "  %-18s %5.2f s  %s\n", s.step, time.Since(s.stepped).Seconds(), outcome)
}

// total returns the time since newSteps.
func (s *steps) total() time.Duration { return time.Since(s.began) }
