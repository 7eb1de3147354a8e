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
	c.Wait(20*time.Second, "an observation of the broken quorum", func(ctx context.Context) (bool, string, error) {
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

// signalBehindTheBack signals a process without the prober's knowledge that the test did it.
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

func TestFaultsARecordShowsBrokenPromises(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	record := c.Record()
	workers := c.MustMachines("worker")
	for _, m := range workers {
		c.MustCLI("adm", "cordon", m.GetMetadata().GetName())
	}
	pods, err := c.Pods(t.Context(), "app=hello")
	if err != nil || len(pods) != 3 {
		t.Fatalf("%d pods of the example (%v)", len(pods), err)
	}
	// A deletion asks no budget.
	c.MustCLI("delete", "pod", "--wait=false", pods[0].GetMetadata().GetName(), pods[1].GetMetadata().GetName())
	c.Wait(20*time.Second, "the broken promises in the record", func(context.Context) (bool, string, error) {
		all := strings.Join(harness.Broken(record.Steps(), nil, []harness.Promise{hello}), "\n")
		return strings.Contains(all, "unavailable at once") && strings.Contains(all, "only 1 like it were ready"), all, nil
	})
	for _, m := range workers {
		c.MustCLI("adm", "uncordon", m.GetMetadata().GetName())
	}
	c.SettleAll(patience)
}
