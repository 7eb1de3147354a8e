package harness

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Link is the way from one machine's agent to the gateway, which a test can cut: then nothing arrives any more, in
// either direction, and nothing is said about that. New connections are accepted, as by a host whose network is lost
// behind the next router, and stay without an answer.
type Link struct {
	c       *Cluster
	machine string
	listen  net.Listener
	done    sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns []*wire
}

// wire is one connection. What it lost while the link was cut is lost for good, so it ends then.
type wire struct {
	agent, gateway net.Conn
	lost           bool // something was not passed on
}

// LinkOf puts a link between a machine's agent and the gateway, and returns when the agent uses it. The agent is
// started again for that, and once more without the link when the test ends.
func (c *Cluster) LinkOf(machine string) *Link {
	c.t.Helper()
	host, _, err := net.SplitHostPort(c.Gateway())
	if err != nil {
		c.t.Fatal(err)
	}
	l := &Link{c: c, machine: machine}
	// At the gateway's own host, which is in its certificate.
	if l.listen, err = net.Listen("tcp", host+":0"); err != nil {
		c.t.Fatal(err)
	}
	l.done.Go(l.serve)
	var before [][]byte
	for _, path := range l.files() {
		text, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		before = append(before, text)
	}
	write := func(text func(before []byte) []byte) {
		for i, path := range l.files() {
			if err := os.WriteFile(path, text(before[i]), 0o600); err != nil {
				c.t.Error(err)
			}
		}
		l.restart()
	}
	c.t.Cleanup(func() {
		l.Heal()
		write(func(before []byte) []byte { return before })
		l.end()
	})
	write(func(before []byte) []byte {
		return bytes.ReplaceAll(before, []byte(c.Gateway()), []byte(l.listen.Addr().String()))
	})
	c.Wait(leastPatience, "the agent of "+machine+" to use the link", func(context.Context) (bool, string, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.conns) > 0, "no connection", nil
	})
	return l
}

// files are where the agent has the gateways from: the list that came with its certificates, and the one it was born
// with.
func (l *Link) files() []string {
	dir := l.c.Dir("services", "provider-local", "machines", l.machine)
	return []string{filepath.Join(dir, "pki", "node.json"), filepath.Join(dir, "bootstrap.json")}
}

// restart ends the agent, which is started again by its provider.
func (l *Link) restart() {
	was, err := l.c.find(Agent(l.machine))
	if err != nil {
		return // its machine is gone, or it is being started
	}
	if err := l.c.Kill(was.Name); err != nil {
		l.c.t.Error(err)
	}
	l.c.Wait(leastPatience, "another "+was.Name, func(context.Context) (bool, string, error) {
		now, err := l.c.find(was.Name)
		return err == nil && now.PID != was.PID, "", err
	})
}

// Cut loses everything from now on.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
}

// Heal passes everything on again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		return
	}
	l.cut = false
	for _, w := range l.conns {
		if w.lost || w.gateway == nil {
			w.end()
		}
	}
}

func (w *wire) end() {
	w.agent.Close()
	if w.gateway != nil {
		w.gateway.Close()
	}
}

// end ends the link and its connections.
func (l *Link) end() {
	l.listen.Close()
	l.mu.Lock()
	for _, w := range l.conns {
		w.end()
	}
	l.mu.Unlock()
	l.done.Wait()
}

func (l *Link) serve() {
	for {
		agent, err := l.listen.Accept()
		if err != nil {
			return
		}
		w := &wire{agent: agent}
		l.mu.Lock()
		l.conns = append(l.conns, w)
		cut := l.cut
		l.mu.Unlock()
		l.done.Go(func() { l.carry(w, cut) })
	}
}

// carry passes one connection on, which may have begun while the link was cut.
func (l *Link) carry(w *wire, cut bool) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		w.end()
		l.conns = slices.DeleteFunc(l.conns, func(o *wire) bool { return o == w })
	}()
	if cut {
		_, _ = io.Copy(io.Discard, w.agent) // until either side ends it
		return
	}
	gateway, err := net.DialTimeout("tcp", l.c.Gateway(), 10*time.Second)
	if err != nil {
		return
	}
	l.mu.Lock()
	w.gateway = gateway
	l.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		l.pass(w, w.agent, gateway)
		w.agent.Close()
	})
	l.pass(w, gateway, w.agent)
	gateway.Close()
	back.Wait()
}

// pass copies one direction of a connection while the link is not cut.
func (l *Link) pass(w *wire, to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		lost := l.cut || w.lost
		w.lost = lost
		l.mu.Unlock()
		if !lost && n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
