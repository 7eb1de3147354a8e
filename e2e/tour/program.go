package main

import (
	"bytes"
	"context"
	"os/exec"
	"sync"
)

// program is one that runs beside the tour.
type program struct {
	cmd   *exec.Cmd
	stop  context.CancelFunc
	ended chan struct{}

	mu   sync.Mutex
	text bytes.Buffer // what it printed
}

// start runs a program until end is called or ctx ends.
func (t *tour) start(ctx context.Context, name string, args ...string) (*program, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &program{cmd: t.shell.command(ctx, name, args...), stop: stop, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		stop()
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended matters only to who waits for its work, and prints what it said
	}()
	return p, nil
}

// Write keeps what the program prints.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// said returns what the program has printed.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// end stops the program and waits for its end.
func (p *program) end() {
	p.stop()
	<-p.ended
}
