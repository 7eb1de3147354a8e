package harness

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Provider is a process of a provider that `windlass up` does not start.
type Provider struct {
	c       *Cluster
	address string
	args    []string
	cmd     *exec.Cmd
	log     bytes.Buffer
}

// Provide runs a provider with a certificate of the cluster until the test ends, and returns when it listens.
func (c *Cluster) Provide(name string, flags ...string) *Provider {
	c.t.Helper()
	binary, err := Binary()
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	c.MustCLI("auth", "issue", "--service", name, "--host", "127.0.0.1", "--out", filepath.Join(dir, "tls"))
	p := &Provider{c: c, address: FreeAddress(c.t, "127.0.0.1")}
	p.args = append([]string{
		binary, "serve", name, "--listen", p.address, "--dir", dir, "--tls-dir", filepath.Join(dir, "tls"),
	}, flags...)
	c.t.Cleanup(func() {
		p.Continue()
		if p.cmd.Process.Signal(syscall.SIGTERM) == nil {
			p.Ended()
		}
		if c.t.Failed() {
			c.t.Log(p.log.String())
		}
	})
	p.Start()
	return p
}

// Address returns where the provider listens.
func (p *Provider) Address() string { return p.address }

// Start starts the provider, once more if it has ended, and returns when it listens.
func (p *Provider) Start() {
	t := p.c.t
	t.Helper()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.c.Wait(time.Minute, p.args[2]+" to listen", func(ctx context.Context) (bool, string, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address)
		if err != nil {
			return false, "", err
		}
		return true, "", conn.Close()
	})
}

// Pause stops the provider with SIGSTOP.
func (p *Provider) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) } // one that has ended is as wanted

// Continue lets a paused provider go on.
func (p *Provider) Continue() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends the provider with SIGKILL; Ended returns when that is done.
func (p *Provider) Kill() { _ = p.cmd.Process.Kill() } // one that has ended is as wanted

// Ended returns when the provider has ended.
func (p *Provider) Ended() { _ = p.cmd.Wait() } // that it ends is what counts
