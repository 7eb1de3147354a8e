// Package systemd installs the Debian package on hosts with systemd, each a container, which begin a cluster, join it,
// reboot, and get a new version of the package.
package systemd

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/e2e/harness"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// patience is for what is waited for: it costs time only in a test that fails.
const patience = 6 * time.Minute

// present is the version of the package that hosts are installed with, next that of an upgrade.
const present, next = "0.1.0", "0.1.1"

// fleet makes the package in each of the versions, and boots hosts with the first one installed.
func fleet(t *testing.T, count int, versions ...string) []*host {
	t.Helper()
	if _, err := docker("version"); err != nil {
		t.Skipf("no container engine answers: %v", err)
	}
	t.Logf("container test: runs, with %d hosts", count)
	began := time.Now()
	root := image(t)
	t.Logf("image %s after %.0f s", root, time.Since(began).Seconds())
	packages := t.TempDir()
	for _, version := range versions {
		pack(t, packages, version)
	}
	t.Logf("packages after %.0f s", time.Since(began).Seconds())
	name, subnet := network(t)
	var hosts []*host
	for i := range count {
		h := boot(t, root, name, fmt.Sprintf("h%d", i+1), fmt.Sprintf("%s.%d", subnet, i+11), packages)
		h.install(versions[0])
		hosts = append(hosts, h)
		t.Logf("%s has the package after %.0f s", h.name, time.Since(began).Seconds())
	}
	return hosts
}

// begin begins a cluster on the first of three hosts, which the others join, and waits until each has a member of etcd
// that votes.
func begin(hosts []*host) {
	first := hosts[0]
	first.t.Helper()
	first.must("windlass", "host", "init", "--address", first.address, "--zone", "zone-"+first.name)
	first.start()
	for i, h := range hosts[1:] {
		h.join(hosts[i])
	}
	for _, h := range hosts {
		h.awaitOperators()
	}
	first.awaitVoters(len(hosts))
}

// awaitVoters waits until the quorum has n healthy voters and is stable, as the gateway of the host reports it.
func (h *host) awaitVoters(n int) {
	h.t.Helper()
	await(h.t, "voters", func() string {
		ctx, cancel := call()
		defer cancel()
		q, err := etcdv1.NewQuorumServiceClient(h.conn).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
		healthy := 0
		for _, m := range q.GetMembers() {
			if m.GetHealthy() && !m.GetLearner() {
				healthy++
			}
		}
		if healthy == n && len(q.GetMembers()) == n && q.GetPhase() == "Stable" {
			return ""
		}
		return fmt.Sprintf("%d of %d, phase %s, waits for %q %v", healthy, n, q.GetPhase(), q.GetWaitsFor(), err)
	})
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
				if c.GetType() == "Available" && c.GetStatus() == "True" && len(h.programs()[name]) == 1 {
					return ""
				}
			}
			return fmt.Sprintf("%v %v, processes %v", o.GetStatus().GetConditions(), err, h.programs())
		})
	}
}

func TestAHostJoinsAndReboots(t *testing.T) {
	hosts := fleet(t, 3, present, next)
	h1, h2, h3 := hosts[0], hosts[1], hosts[2]
	run(t, "hosts begin a cluster and join it", func(*testing.T) { begin(hosts) })
	run(t, "a host reboots, and no call fails at another gateway", func(t *testing.T) { rebootsUnnoticed(t, h2, h1) })
	run(t, "a configuration changes the hosts' own files", func(t *testing.T) { configures(t, hosts) })
	run(t, "programs run on when the package is upgraded", func(*testing.T) {
		h3.keepsPrograms(func() { h3.install(next) })
	})
}

func TestThreeHosts(t *testing.T) {
	hosts := fleet(t, 3, present, next)
	h1, h2, h3 := hosts[0], hosts[1], hosts[2]
	run(t, "a host that is in no cluster runs nothing, and no unit fails", func(t *testing.T) {
		h3.must("systemctl", "start", "windlass")
		if state, result := h3.unit("ActiveState"), h3.unit("ConditionResult"); state != "inactive" || result != "no" {
			t.Errorf("the unit is %s, its condition %s", state, result)
		}
		if state := h3.must("systemctl", "is-system-running"); state != "running" {
			t.Errorf("the system is %s", state)
		}
	})
	run(t, "hosts begin a cluster and join it", func(*testing.T) { begin(hosts) })
	// Before anything else is disturbed, so that the gateway that is called uses the programs of its own host.
	run(t, "a host reboots, and no call fails at another gateway", func(t *testing.T) { rebootsUnnoticed(t, h3, h2) })
	run(t, "so does another one", func(t *testing.T) { rebootsUnnoticed(t, h2, h1) })
	run(t, "and the one that began the cluster", func(t *testing.T) { rebootsUnnoticed(t, h1, h2) })
	for _, c := range []struct {
		name    string
		replace func() // the supervisor of h2
	}{
		{"programs run on when the unit is restarted", func() { h2.must("systemctl", "restart", "windlass") }},
		{"programs run on when windlass host run ends", func() { h2.must("sh", "-c", "kill -TERM "+h2.unit("MainPID")) }},
		{"programs run on when it is killed", func() { h2.must("sh", "-c", "kill -KILL "+h2.unit("MainPID")) }},
		{"programs run on when the package is upgraded", func() { h2.install(next) }},
	} {
		run(t, c.name, func(*testing.T) { h2.keepsPrograms(c.replace) })
	}
	run(t, "after the upgrade the new executable runs", func(t *testing.T) {
		if exe := h2.must("readlink", "/proc/"+h2.unit("MainPID")+"/exe"); exe != "/usr/bin/windlass" {
			t.Errorf("windlass host run is of %s", exe)
		}
	})
	run(t, "programs are not stopped where the unit would start them again", func(t *testing.T) {
		before := h2.programs()
		out, err := h2.try("windlass", "host", "stop")
		if err == nil || !strings.Contains(err.Error(), "use `systemctl stop windlass`") {
			t.Errorf("%s %v", out, err)
		}
		if diff := cmp.Diff(before, h2.programs()); diff != "" {
			t.Errorf("processes (-before +after):\n%s", diff)
		}
	})
	run(t, "the unit ends the programs when it is stopped, and starts them again", func(*testing.T) {
		h3.stopped(func() { h3.must("systemctl", "stop", "windlass") })
		h3.must("systemctl", "start", "windlass")
		h3.awaitOperators()
	})
	run(t, "a removal of the package ends the programs and keeps the host's files", func(t *testing.T) {
		h3.stopped(func() { h3.must("dpkg", "--purge", "windlass") })
		h3.must("test", "-f", "/var/lib/windlass/host.json", "-a", "-d", "/var/lib/windlass/pki")
		if state := h3.must("systemctl", "is-system-running"); state != "running" {
			t.Errorf("the system is %s", state)
		}
		h3.install(present)
		h3.start()
	})
	run(t, "a release brings its programs to all hosts", func(*testing.T) { updates(hosts) })
}

// updates has a release, which is on the first host alone, bring its programs to all hosts, and reports how long that
// took.
func updates(hosts []*host) {
	first := hosts[0]
	first.t.Helper()
	for _, h := range hosts {
		h.awaitOperators()
	}
	const dir = "/var/lib/windlass/release/"
	image := first.must("windlass", "adm", "release", "new", "--from-dir", dir+"source/1.0.0", "--version", "1.1.0",
		"--previous", "1.0.0", "--to", dir+"images", "--executable", "/usr/bin/windlass", "--signing-key",
		dir+"signing-key.asc", "--signature-store", dir+"signatures", "-o", "name")
	began := time.Now()
	first.must("windlass", "adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade")
	await(first.t, "the update", func() string {
		out, err := first.try("windlass", "adm", "upgrade", "history")
		if completed := regexp.MustCompile(`(?m)^1\.1\.0 +Completed`); err == nil && completed.MatchString(out) {
			return ""
		}
		return fmt.Sprint(out, err)
	})
	first.t.Logf("| update of %d programs on %d hosts | %.0f s |", 1+len(topology.NamesOnHosts()), len(hosts),
		time.Since(began).Seconds())
	for _, h := range hosts {
		for _, name := range append(topology.NamesOnHosts(), "node-agent") {
			exe := h.must("readlink", "/proc/"+h.pid(name)+"/exe")
			if !strings.HasPrefix(exe, "/var/lib/windlass/executables/") {
				h.t.Errorf("%s of %s runs from %s", name, h.name, exe)
			}
		}
	}
}

// run runs a part of a test, which ends when it fails: the next parts need what it leaves.
func run(t *testing.T, name string, part func(t *testing.T)) {
	t.Helper()
	began := time.Now()
	if part(t); t.Failed() {
		t.Fatal("failed: ", name)
	}
	t.Logf("%s (%.0f s)", name, time.Since(began).Seconds())
}

// keepsPrograms replaces the supervisor of the host, and fails the test unless there is a new one which takes over all
// programs: it starts one again that is killed, and leaves the others alone.
func (h *host) keepsPrograms(replace func()) {
	h.t.Helper()
	supervisor, before := h.unit("MainPID"), h.programs()
	replace()
	await(h.t, "another supervisor", func() string {
		if pid := h.unit("MainPID"); pid == "0" || pid == supervisor {
			return fmt.Sprintf("the main process was %s and is %s", supervisor, pid)
		}
		return ""
	})
	const killed = topology.Scheduler
	h.must("sh", "-c", "kill -KILL "+h.pid(killed))
	await(h.t, "another "+killed, func() string {
		if pids := h.programs()[killed]; len(pids) != 1 || slices.Equal(pids, before[killed]) {
			return fmt.Sprintf("the process was %d and is %d", before[killed], pids)
		}
		return ""
	})
	h.awaitOperators()
	after := h.programs()
	delete(before, killed)
	delete(after, killed)
	if diff := cmp.Diff(before, after); diff != "" {
		h.t.Errorf("processes of %s (-before +after):\n%s", h.name, diff)
	}
}

// stopped calls stop, and fails the test unless the unit then has ended all programs of the host, the services before
// etcd.
func (h *host) stopped(stop func()) {
	h.t.Helper()
	stops, ran := h.stops(), h.programs()
	stop()
	if left := h.programs(); len(left) > 0 {
		h.t.Errorf("%s still runs %v", h.name, left)
	}
	h.checkStop(stops, ran)
}

// reboots reboots the host, which must end its programs, the services before etcd, and start them again.
func (h *host) reboots() {
	h.t.Helper()
	stops, ran := h.stops(), h.programs()
	h.reboot()
	h.awaitOperators()
	h.checkStop(stops, ran)
	for name, pids := range h.programs() {
		if slices.Equal(ran[name], pids) {
			h.t.Errorf("%s of %s is the process of before the reboot", name, h.name)
		}
	}
}

// checkStop fails the test unless the programs that ran were stopped once since there had been that many stops, in
// order.
func (h *host) checkStop(stops [][]string, ran map[string][]int) {
	h.t.Helper()
	now := h.stops()
	if len(now) != len(stops)+1 {
		h.t.Fatalf("the unit of %s has stopped the programs %d times, before %d times", h.name, len(now), len(stops))
	}
	last := now[len(stops)]
	h.t.Logf("%s stopped %q", h.name, last)
	services := expected()
	if len(ran["node-agent"]) > 0 {
		services = append(services, "node-agent")
	}
	slices.Sort(services)
	if len(last) <= len(services) || last[0] != "supervisor" {
		h.t.Fatalf("%s has stopped %q", h.name, last)
	}
	first := last[1 : 1+len(services)]
	slices.Sort(first)
	if diff := cmp.Diff(services, first); diff != "" {
		h.t.Errorf("stopped first on %s (-want +got):\n%s", h.name, diff)
	}
	if members := last[1+len(services):]; (len(members) > 0) != (len(ran["etcd-member"]) > 0) {
		h.t.Errorf("after its services %s has stopped %q, and it ran %v", h.name, members, ran)
	}
}

// rebootsUnnoticed reboots a host while objects are created at the gateway of another one, where no call may fail.
func rebootsUnnoticed(t *testing.T, h, other *host) {
	t.Helper()
	w := harness.WriteMaps(t, other.conn, "reboot-of-"+h.name)
	w.Progress()
	h.reboots()
	w.Progress()
	made, failed := w.End()
	if len(failed) > 0 {
		t.Errorf("calls at %s that failed during the reboot of %s: %q", other.name, h.name, failed)
	}
	harness.HasMaps(t, h.name, h.conn, made)
	harness.HasMaps(t, other.name, other.conn, made)
	other.awaitVoters(3) // before another host reboots
}
