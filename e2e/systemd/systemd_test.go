// Package systemd installs the Debian package on hosts with systemd, each a container, which begin a cluster, join it,
// reboot, and get a new version of the package.
package systemd

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/e2e/harness"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// patience is for what is waited for: it costs time only in a test that fails.
const patience = 3 * time.Minute

// present is the version of the package that hosts are installed with, next that of an upgrade.
const present, next = "0.1.0", "0.1.1"

// fleet boots hosts with the package installed; packages is the directory of it and of its next version.
func fleet(t *testing.T, count int) []*host {
	t.Helper()
	harness.Docker(t) // or the test is skipped
	began := time.Now()
	root := image(t)
	packages := t.TempDir()
	pack(t, packages, next)
	deb := pack(t, packages, present)
	name, subnet := network(t)
	var hosts []*host
	for i := range count {
		h := boot(t, root, name, fmt.Sprintf("h%d", i+1), fmt.Sprintf("%s.%d", subnet, i+11), packages)
		h.must("dpkg", "--install", "/packages/"+deb)
		hosts = append(hosts, h)
	}
	t.Logf("container test: runs, %d hosts with the package after %.0f s", count, time.Since(began).Seconds())
	return hosts
}

// begin begins a cluster on the host, and runs its programs.
func (h *host) begin() {
	h.t.Helper()
	h.must("windlass", "host", "init", "--address", h.address, "--zone", "zone-"+h.name)
	h.start()
}

// awaitOperators waits until every ClusterOperator is Available, as the gateway of the host reports it, and the host
// has all its programs.
func (h *host) awaitOperators() {
	h.t.Helper()
	operators := updatev1.NewClusterOperatorServiceClient(h.conn)
	for _, name := range expected() {
		await(h.t, name+" at "+h.name, func() string {
			ctx, cancel := call()
			defer cancel()
			o, err := operators.GetClusterOperator(ctx,
				&updatev1.GetClusterOperatorRequest{Name: topology.Operator(name)})
			for _, c := range o.GetStatus().GetConditions() {
				if c.GetType() == "Available" && c.GetStatus() == "True" && h.programs()[name] != 0 {
					return ""
				}
			}
			return fmt.Sprintf("%v %v, processes %v", o.GetStatus().GetConditions(), err, h.programs())
		})
	}
}

func TestAHostJoinsAndReboots(t *testing.T) {
	hosts := fleet(t, 2)
	began := time.Now()
	hosts[0].begin()
	hosts[1].join(hosts[0])
	t.Logf("joined after %.0f s", time.Since(began).Seconds())
	rebootsUnnoticed(t, hosts[1], hosts[0])
	t.Logf("rebooted after %.0f s", time.Since(began).Seconds())
}

// rebootsUnnoticed reboots a host, which must come back by itself, while calls at the gateway of another host go on.
func rebootsUnnoticed(t *testing.T, h, other *host) {
	t.Helper()
	endsBefore := strings.Count(h.journal(), "processes stopped")
	before := h.programs()
	w := other.write("reboot-of-" + h.name)
	w.progress()
	h.reboot()
	h.awaitOperators()
	w.progress()
	made, failed := w.end()
	if len(failed) > 0 {
		t.Errorf("calls at %s that failed during the reboot of %s: %q", other.name, h.name, failed)
	}
	for _, at := range []*host{h, other} {
		if lost := at.missing(made); len(lost) > 0 {
			t.Errorf("%d of %d acknowledged objects are not at %s: %q", len(lost), len(made), at.name, lost)
		}
	}
	if h.endedInOrder(endsBefore); t.Failed() {
		t.FailNow()
	}
	for name, pid := range h.programs() {
		if before[name] == pid {
			t.Errorf("%s of %s survived the reboot", name, h.name)
		}
	}
}

// endedInOrder fails the test unless the unit has ended the programs once since, as the host was shut down.
func (h *host) endedInOrder(before int) {
	h.t.Helper()
	if ends := strings.Count(h.journal(), fmt.Sprintf("host %s: ", h.name)); ends == 0 {
		h.t.Errorf("%s does not report what it stopped", h.name)
	}
	if ends := strings.Count(h.journal(), "processes stopped"); ends != before+1 {
		h.t.Errorf("the programs of %s were ended in order %d times, not %d", h.name, ends, before+1)
	}
}

var _ = maps.Keys[map[string]int]
var _ = cmp.Diff
var _ = context.Background
