package service

import (
	"os"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// The place that releases come from is gone: the cluster is kept at its release, also after a restart, and an update
// that has begun goes on, and back.
func TestAClusterIsKeptAtItsReleaseWithoutTheSourceOfIt(t *testing.T) {
	c, _ := installed(t)
	c.cfg.reconcile = 100 * time.Millisecond
	if err := os.RemoveAll(c.layout); err != nil {
		t.Fatal(err)
	}
	restored := func() {
		t.Helper()
		const config = "50-worker-release"
		if _, err := c.configs.Delete(t.Context(), "", config, nil); err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			if _, err := c.configs.Get(t.Context(), "", config); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	c.stop()
	c.run()
	restored()

	next := c.image("1.0.1", example("1.0.1"), "1.0.0")
	c.sign(next, c.key)
	c.desire("", next)
	c.version(waitsFor("archive", "ledger"))
	if err := os.RemoveAll(c.layout); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.run()
	c.ready(operators...)
	c.version(completed("1.0.1"))
	c.sign(c.cfg.initial, c.key)
	c.desire("", c.cfg.initial)
	c.version(completed("1.0.0"))
	restored()
	for _, version := range []string{"1.0.0", "1.0.1"} {
		kept := object.FindCondition(c.release(version).GetStatus().GetConditions(), "Kept")
		if kept.GetStatus() != "True" {
			t.Errorf("%s: %v", version, kept)
		}
	}
}
