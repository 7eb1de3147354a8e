package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// operatorsProgram plays the operators of the example releases; it is from deploy/examples/operators.
const operatorsProgram = "example-operators"

// operatorsWork is how long each of them works on a new version.
const operatorsWork = time.Second

// operatorNames are those that the example releases have, in the order in which an update comes to them.
func operatorNames() []string { return []string{"archive", "ledger", "beacon"} }

// operators is the program while it runs.
type operators struct {
	cmd   *exec.Cmd
	stop  context.CancelFunc
	ended chan error

	mu    sync.Mutex
	lines []string
	spans []span // what each did, in the order in which it began
}

// span is a time in which something went on; until is zero while it does.
type span struct {
	what         string
	since, until time.Time
}

// startOperators starts the program.
func (t *tour) startOperators(ctx context.Context) (*operators, error) {
	line := fmt.Sprintf("%s --work %s", operatorsProgram, operatorsWork)
	t.command(line+" &", 0, "")
	ctx, stop := context.WithCancel(ctx)
	o := &operators{stop: stop, ended: make(chan error, 1)}
	o.cmd = t.shell.command(ctx, "sh", "-c", `set -e; settings=$(`+t.shell.line("windlass", "env")+
		`); eval "$settings"; exec `+line)
	out, in := io.Pipe()
	o.cmd.Stdout, o.cmd.Stderr = in, in
	if err := o.cmd.Start(); err != nil {
		stop()
		return nil, err
	}
	go o.listen(out)
	go func() {
		err := o.cmd.Wait()
		in.Close()
		o.ended <- fmt.Errorf("%s: %w", operatorsProgram, errors.Join(err, errEnded))
	}()
	return o, nil
}

var operatorLine = regexp.MustCompile(`^\S+\s+(\S+)\s+(works on|is at) (\S+)$`)

// listen notes what the operators say until they end.
func (o *operators) listen(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		o.read(s.Text(), time.Now())
	}
}

func (o *operators) read(line string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, line)
	m := operatorLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	what := m[1] + " " + m[3]
	i := slices.IndexFunc(o.spans, func(s span) bool { return s.what == what && s.until.IsZero() })
	switch {
	case m[2] == "works on" && i < 0:
		o.spans = append(o.spans, span{what: what, since: at})
	case m[2] == "is at" && i >= 0:
		o.spans[i].until = at
	}
}

// work returns what was done for a version, in the order in which it began.
func (o *operators) work(version string) []span {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(o.spans), func(s span) bool { return !strings.HasSuffix(s.what, " "+version) })
}

// said returns the end of what the program said.
func (o *operators) said() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return lastLines(strings.Join(o.lines, "\n"), 10)
}

// close ends the program.
func (o *operators) close() error {
	o.stop()
	select {
	case <-o.ended:
		return nil
	case <-time.After(2 * o.cmd.WaitDelay):
		return fmt.Errorf("%s does not end", operatorsProgram)
	}
}

// outside returns how much of the time from since to until no span covers.
func outside(since, until time.Time, spans []span) time.Duration {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return a.since.Compare(b.since) })
	var free time.Duration
	at := since
	for _, s := range spans {
		if s.since.After(until) {
			break
		}
		if s.since.After(at) {
			free += s.since.Sub(at)
		}
		if s.until.After(at) {
			at = s.until
		}
	}
	if until.After(at) {
		free += until.Sub(at)
	}
	return free
}
