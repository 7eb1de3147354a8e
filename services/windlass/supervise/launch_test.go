package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

// launching is a host whose `windlass host run` are shell scripts.
type launching struct {
	*executables
	said string // file that the scripts write to
	t    *testing.T
}

func newLaunching(t *testing.T) launching {
	t.Helper()
	dir := t.TempDir()
	c := cluster.InContainers(dir, cluster.Settings{Member: &cluster.Member{Name: "h1"}})
	c.Containers = false
	own := ownExecutable{filepath.Join(dir, "own"), "1.0.0"}
	return launching{newExecutables(c, own, slog.New(slog.DiscardHandler)), filepath.Join(dir, "said"), t}
}

// script writes the executable at path.
func (l launching) script(path, text string) {
	l.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		l.t.Fatal(err)
	}
	text = fmt.Sprintf("#!/bin/sh\nsaid=%s\n%s\n", l.said, text)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		l.t.Fatal(err)
	}
}

// lines returns what the scripts have written.
func (l launching) lines() string {
	raw, _ := os.ReadFile(l.said)
	return strings.Join(strings.Fields(string(raw)), " ")
}

var brought = plan.Executable{Image: "windlass@sha256:" + strings.Repeat("a", 64), Version: "1.1.0"}

func (l launching) record(r plan.Record) {
	l.t.Helper()
	if err := l.write(topology.Host, r); err != nil {
		l.t.Fatal(err)
	}
}

func TestAHostRunThatDoesNotComeUpIsTakenBack(t *testing.T) {
	l := newLaunching(t)
	l.script(l.own.Path, `echo own $WINDLASS_HOST_OWN_VERSION >> $said`)
	l.script(l.path(brought), `echo new >> $said; echo this version cannot read its state >&2; exit 1`)
	l.record(plan.Record{Running: brought, Previous: l.first(), OnTrial: true, Generation: 2})
	if code, err := launch(t.Context(), l.cluster, l.own, l.log); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if got, want := l.lines(), "new new new new own 1.0.0"; got != want {
		t.Errorf("started: %s, want %s", got, want)
	}
	r, err := l.read(topology.Host)
	if err != nil || r.OnTrial || r.Running != l.first() || r.Refused == nil || r.Refused.Reason != plan.RolledBack ||
		!strings.Contains(r.Refused.Message, "cannot read its state") || r.Refused.Generation != 2 {
		t.Errorf("the record is %+v, %v", r, err)
	}
}

func TestAHostRunThatIsUpEndsItsLauncherWhenItFails(t *testing.T) {
	l := newLaunching(t)
	l.script(l.path(brought), `echo new >> $said; exit 3`)
	l.record(plan.Record{Running: brought, Previous: l.first()})
	if code, err := launch(t.Context(), l.cluster, l.own, l.log); code != 3 || err != nil || l.lines() != "new" {
		t.Errorf("exit code %d, %v, started: %s", code, err, l.lines())
	}
	l.script(l.path(brought), `kill -9 $$`)
	if code, err := launch(t.Context(), l.cluster, l.own, l.log); err == nil {
		t.Errorf("exit code %d of a process that was killed, without an error", code)
	}
}

// The process writes down from what it is to be started, and ends.
func TestAHostRunIsStartedAgainFromWhatItWroteDown(t *testing.T) {
	l := newLaunching(t)
	l.record(plan.Record{Running: brought, Previous: l.first()})
	switched, err := os.ReadFile(recordFile(l.cluster, topology.Host))
	if err != nil {
		t.Fatal(err)
	}
	l.record(plan.Record{Running: l.first()})
	l.script(l.own.Path, fmt.Sprintf("echo own >> $said; cat > %s <<'E'\n%s\nE\nexit %d",
		recordFile(l.cluster, topology.Host), switched, againCode))
	l.script(l.path(brought), `echo new $WINDLASS_HOST_OWN >> $said`)
	if code, err := launch(t.Context(), l.cluster, l.own, l.log); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if got, want := l.lines(), "own new "+l.own.Path; got != want {
		t.Errorf("started: %s, want %s", got, want)
	}
}

func TestAHostRunEndsWithItsLauncher(t *testing.T) {
	l := newLaunching(t)
	l.script(l.own.Path, `trap 'echo ended >> $said; exit 0' TERM; echo up >> $said; while :; do sleep 0.02; done`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := launch(ctx, l.cluster, l.own, l.log)
		done <- err
	}()
	servetest.Await(t, func() string {
		if l.lines() != "up" {
			return "the process is not up"
		}
		return ""
	})
	if pid, err := Alive(l.cluster); pid != os.Getpid() || err != nil {
		t.Errorf("alive is %d, %v, want the launcher, %d", pid, err, os.Getpid())
	}
	cancel()
	if err := <-done; err != nil || l.lines() != "up ended" {
		t.Errorf("%v, said: %s", err, l.lines())
	}
	if pid, err := Alive(l.cluster); pid != 0 || err != nil {
		t.Errorf("alive is %d, %v after the end", pid, err)
	}
}

// A process that waits for update-orchestrator for long is not taken for one that hangs.
func TestAHostRunOnTrialMayGoOnWhileItAttests(t *testing.T) {
	l := launcher{executables: newLaunching(t).executables}
	file := recordFile(l.executables.cluster, topology.Host)
	for _, c := range []struct {
		onTrial bool
		age     time.Duration
		want    bool
	}{{true, 0, true}, {true, 2 * attestPatience, false}, {false, 2 * attestPatience, true}} {
		r := plan.Record{Running: l.executables.first(), OnTrial: c.onTrial}
		if err := l.executables.write(topology.Host, r); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-c.age)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		if got := l.attested(); got != c.want {
			t.Errorf("on trial: %v, attested %s ago: may go on: %v, want %v", c.onTrial, c.age, got, c.want)
		}
	}
}

func TestTheLinkLeadsToTheExecutable(t *testing.T) {
	l := newLaunching(t)
	for _, to := range []string{"/usr/bin/windlass", "/usr/bin/windlass", "/var/lib/windlass/executables/a/windlass"} {
		if err := setLink(l.cluster, to); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link(l.cluster)); got != to || err != nil {
			t.Errorf("it leads to %s, %v, want %s", got, err, to)
		}
	}
}
