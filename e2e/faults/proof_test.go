package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// What the other tests rely on is proved here: that a broken promise is seen.

func TestFaultsTheProberSeesTwoVotersDown(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	prober := c.Probe()
	masters := c.MustMachines("master")
	t.Cleanup(func() {
		if err := c.ContinueAll(); err != nil {
			t.Error(err)
		}
	})
	for _, m := range masters[:2] {
		signalBehindTheBack(t, c, harness.Member(m.GetMetadata().GetName()), unix.SIGSTOP)
	}
	c.Wait(20*time.Second, "a look at the broken quorum", func(ctx context.Context) (bool, string, error) {
		return prober.Seen() > 0, "", nil
	})
	if err := c.ContinueAll(); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(prober.Violations(), "\n")
	for _, want := range []string{"two voters are down", "fewer healthy voters than a majority"} {
		if !strings.Contains(all, want) {
			t.Errorf("the prober does not say %q: %s", want, all)
		}
	}
	c.Settle(patience)
}

// signalBehindTheBack signals a process without the prober being told that it is the test's doing.
func signalBehindTheBack(t *testing.T, c *harness.Cluster, name string, sig unix.Signal) {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == name {
			if err := unix.Kill(p.PID, sig); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process %s", name)
}

func TestFaultsALostWriteIsSeen(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	writers := c.Write()
	c.Wait(patience, "a write", func(context.Context) (bool, string, error) { return writers.Acknowledged() > 0, "", nil })
	writers.Claim("never-written")
	lost := writers.Lost()
	if len(lost) != 3 || !strings.Contains(lost[0], "never-written") {
		t.Errorf("of a write that was never made it is said: %q", lost)
	}
}
