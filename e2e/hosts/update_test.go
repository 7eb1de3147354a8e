package hosts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/topology"
)

// testUpdate has releases bring the programs to all hosts: one host at a time, and back.
func testUpdate(t *testing.T, f *fleet) {
	h2, h3 := f.hosts[1], f.hosts[2]
	all := append(slices.Clone(f.hosts), f.spare)
	run(t, "a release brings programs to one host after the other", func(t *testing.T) {
		// Its image is on this host alone.
		before, _, err := h2.quorum()
		if err != nil || len(before.GetMembers()) == 0 {
			t.Fatal(before, err)
		}
		changed, etcd := anotherEtcd(t, h3.bin, before.GetMembers()[0].GetVersion())
		image := h3.release("1.1.0", "1.0.0", changed, "--program", topology.UpdateOrchestrator, "--program", topology.Host)
		members := map[string]string{}
		for _, h := range all {
			members[h.name] = fmt.Sprint(h.pids("etcd-member"))
		}
		w := h2.write("update")
		w.Progress()
		h3.upgrade("--to-image", image, "--allow-explicit-upgrade")
		var last string
		f.await("a host to change itself", func() string {
			programs, err := h2.programs()
			if at := onTrial(programs); len(at) > 1 {
				t.Errorf("processes of %v change at a time: %v", at, programs)
			}
			if last = programs[topology.Host].GetStatus().GetTurn(); last == "" {
				return fmt.Sprint(programs, err)
			}
			return ""
		})
		for _, h := range all {
			if h.name == last { // it goes on by what it has written down
				h.halt()
				h.start()
			}
		}
		f.await("the release on all hosts", func() string {
			programs, err := h2.programs()
			if at := onTrial(programs); len(at) > 1 {
				t.Errorf("processes of %v change at a time: %v", at, programs)
			}
			if q, healthy, err := h2.quorum(); err == nil && healthy < len(q.GetMembers())-1 {
				t.Errorf("%d of %d members of etcd are healthy at a time", healthy, len(q.GetMembers()))
			}
			if missing := h2.completed("1.1.0"); missing != "" {
				return fmt.Sprint(missing, programs, err)
			}
			return ""
		})
		q, _, err := h2.quorum() // completed means that all run it
		for _, m := range q.GetMembers() {
			if m.GetVersion() != etcd || m.GetNextVersion() != etcd || m.GetOtherExecutable() {
				t.Errorf("%s runs etcd %s, another executable: %v; its host has %s, and the release %s", m.GetName(),
					m.GetVersion(), m.GetOtherExecutable(), m.GetNextVersion(), etcd)
			}
		}
		if err != nil || len(q.GetMembers()) != 3 || q.GetPermit() != nil {
			t.Errorf("after the update: %v %v", q, err)
		}
		for _, h := range all {
			for _, name := range h.having(topology.UpdateOrchestrator, topology.Host) {
				if exe := h.runsFrom(name); !strings.HasPrefix(exe, filepath.Join(h.dir, "executables")+"/") {
					t.Errorf("%s of %s runs from %s", name, h.name, exe)
				}
			}
			if now := fmt.Sprint(h.pids("etcd-member")); (now == members[h.name]) != (now == "[]") {
				t.Errorf("the processes of etcd's member on %s were %s and are %s", h.name, members[h.name], now)
			}
		}
		made, failed := w.End()
		if failed = slices.DeleteFunc(failed, ended); len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, all...)
	})
	run(t, "an update that is aborted goes back on all hosts", func(t *testing.T) {
		before := map[string]string{} // host → executables of what 1.1.0 brought
		executables := func(h *host) (out string) {
			for _, name := range h.having(topology.UpdateOrchestrator, topology.Host) {
				out += name + ": " + h.runsFrom(name) + "\n"
			}
			return out
		}
		for _, h := range all {
			before[h.name] = executables(h)
		}
		image := h3.release("1.1.1", "1.1.0", another(t, h3.bin), "--program", topology.UpdateOrchestrator, "--program",
			topology.EtcdGuardian, "--program", topology.Host)
		h3.upgrade("--to-image", image, "--allow-explicit-upgrade")
		f.await("a host to have changed etcd-guardian", func() string {
			programs, err := h2.programs()
			if at := onTrial(programs); len(at) > 1 {
				t.Errorf("processes of %v change at a time: %v", at, programs)
			}
			for _, r := range programs[topology.EtcdGuardian].GetStatus().GetHosts() {
				if r.GetImage() != "" && !r.GetProgressing() {
					return ""
				}
			}
			return fmt.Sprint(programs, err)
		})
		h3.upgrade("--abort")
		f.await("the former release", func() string {
			programs, err := h2.programs()
			if at := onTrial(programs); len(at) > 1 {
				t.Errorf("processes of %v change at a time: %v", at, programs)
			}
			if _, is := programs[topology.EtcdGuardian]; err != nil || is {
				return fmt.Sprint(programs, err)
			}
			return h2.completed("1.1.0")
		})
		for _, h := range all {
			if now := executables(h); now != before[h.name] {
				t.Errorf("programs of %s run from\n%sand ran from\n%s", h.name, now, before[h.name])
			}
			if exe := h.runsFrom(topology.EtcdGuardian); strings.Contains(exe, "executables") {
				t.Errorf("etcd-guardian of %s runs from %s", h.name, exe)
			}
		}
	})
	run(t, "a release that does not come up stops at the first host", func(t *testing.T) {
		before := map[string]string{}
		for _, h := range all {
			before[h.name] = fmt.Sprint(h.pids(topology.UpdateOrchestrator))
		}
		h3.upgrade("--to-image", h3.release("1.1.2", "1.1.0", harness.BrokenExecutable(t)), "--allow-explicit-upgrade")
		f.await("the update to fail", func() string {
			cv, err := h2.version()
			for _, c := range cv.GetStatus().GetConditions() {
				if c.GetType() == "Failing" && c.GetStatus() == "True" &&
					strings.Contains(c.GetMessage(), "this version cannot read its state") {
					return ""
				}
			}
			return fmt.Sprint(cv.GetStatus().GetConditions(), err)
		})
		var changed []string
		for _, h := range all {
			if fmt.Sprint(h.pids(topology.UpdateOrchestrator)) != before[h.name] {
				changed = append(changed, h.name)
			}
		}
		if len(changed) != 1 {
			t.Errorf("it was tried on the hosts %q", changed)
		}
		h3.upgrade("--abort")
		f.await("the former release", func() string { return h2.completed("1.1.0") })
	})
	run(t, "a windlass host run that does not come up is taken back", func(t *testing.T) {
		before := map[string]string{}
		for _, h := range all {
			before[h.name] = h.runsFrom(topology.Host)
		}
		h3.upgrade("--to-image", h3.release("1.1.3", "1.1.0", harness.BrokenExecutable(t), "--program", topology.Host),
			"--allow-explicit-upgrade")
		f.await("the update to fail", func() string {
			cv, err := h2.version()
			for _, c := range cv.GetStatus().GetConditions() {
				if c.GetType() == "Failing" && c.GetStatus() == "True" &&
					strings.Contains(c.GetMessage(), "this version cannot read its state") {
					return ""
				}
			}
			return fmt.Sprint(cv.GetStatus().GetConditions(), err)
		})
		for _, h := range all {
			if exe := h.runsFrom(topology.Host); exe != before[h.name] {
				t.Errorf("windlass host run of %s runs from %s, and ran from %s", h.name, exe, before[h.name])
			}
		}
		h3.upgrade("--abort")
		f.await("the former release", func() string { return h2.completed("1.1.0") })
	})
}

// onTrial returns the hosts on which processes change to another executable, with how many.
func onTrial(programs map[string]*programv1.Program) map[string]int {
	out := map[string]int{}
	for _, p := range programs {
		for _, r := range p.GetStatus().GetHosts() {
			if r.GetReason() == "Starting" {
				out[r.GetName()]++
			}
		}
	}
	return out
}

// release makes a release of the example's manifests with an executable on this host, and returns its image.
func (h *host) release(version, previous, executable string, flags ...string) string {
	h.t.Helper()
	at := func(elem string) string { return filepath.Join(h.dir, "release", elem) }
	out, code := h.stdout(append([]string{
		"adm", "release", "new", "--from-dir",
		filepath.Join(harness.Root(), "deploy/examples/releases/1.0.0"),
		"--version", version, "--previous", previous, "--to", at("images"), "--executable", executable,
		"--signing-key", at("signing-key.asc"), "--signature-store", at("signatures"), "-o", "name",
	}, flags...)...)
	if code != 0 {
		h.t.Fatalf("no release: %s", out)
	}
	return out
}

// upgrade runs `windlass adm upgrade` on this host.
func (h *host) upgrade(args ...string) {
	h.t.Helper()
	if out, code := h.here(append([]string{"adm", "upgrade"}, args...)...); code != 0 {
		h.t.Fatalf("adm upgrade %v: exit code %d\n%s", args, code, out)
	}
}

func (h *host) programs() (map[string]*programv1.Program, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	list, err := programv1.NewProgramServiceClient(conn).ListPrograms(ctx, &programv1.ListProgramsRequest{})
	out := map[string]*programv1.Program{}
	for _, p := range list.GetItems() {
		out[p.GetMetadata().GetName()] = p
	}
	return out, err
}

func (h *host) version() (*updatev1.ClusterVersion, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	return updatev1.NewClusterVersionServiceClient(conn).GetClusterVersion(ctx,
		&updatev1.GetClusterVersionRequest{Name: "version"})
}

// completed returns "" if the cluster is at a version.
func (h *host) completed(version string) string {
	cv, err := h.version()
	if list := cv.GetStatus().GetHistory(); err == nil && len(list) > 0 && list[0].GetVersion() == version &&
		list[0].GetState() == "Completed" {
		return ""
	}
	return fmt.Sprint(cv.GetStatus().GetConditions(), err)
}

// another makes an executable that does the same as another one, and is not the same.
func another(t *testing.T, executable string) string {
	t.Helper()
	raw, err := os.ReadFile(executable)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "windlass")
	if err := os.WriteFile(out, append(raw, 0), 0o700); err != nil {
		t.Fatal(err)
	}
	return out
}

// anotherEtcd makes an executable that says that its etcd is of another patch version, and returns that.
func anotherEtcd(t *testing.T, executable, now string) (out, etcd string) {
	t.Helper()
	raw, err := os.ReadFile(executable)
	if err != nil {
		t.Fatal(err)
	}
	last := len(now) - 1
	etcd = now[:last] + string('0'+(now[last]-'0'+1)%10)
	out = filepath.Join(t.TempDir(), "windlass")
	if err := os.WriteFile(out, bytes.ReplaceAll(raw, []byte(now), []byte(etcd)), 0o700); err != nil {
		t.Fatal(err)
	}
	return out, etcd
}

// having returns names, and that of the agent of the host's machine if it has one.
func (h *host) having(names ...string) []string {
	if len(h.pids("node-agent")) > 0 {
		names = append(names, "node-agent")
	}
	return names
}

// runsFrom returns the executable that a program of this host runs from, as the kernel says.
func (h *host) runsFrom(program string) string {
	h.t.Helper()
	pids := h.pids(program)
	if program == topology.Host {
		pid, err := process.Owner(filepath.Join(h.dir, "run"))
		if err != nil || pid == 0 {
			h.t.Errorf("windlass host run of %s: %d, %v", h.name, pid, err)
			return ""
		}
		pids = []int{pid}
	}
	if len(pids) != 1 {
		h.t.Errorf("%d processes of %s on %s", len(pids), program, h.name)
		return ""
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pids[0]))
	if err != nil {
		h.t.Error(err)
	}
	return exe
}
