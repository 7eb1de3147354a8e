package systemd

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// host is one host of a test: a container whose first process is systemd.
type host struct {
	t         *testing.T
	name      string // of the host
	container string
	address   string
	conn      *grpc.ClientConn // the administrator's to the gateway of this host; nil until dial
}

// boot starts a host on a network and returns when systemd has started all units. The directory of the packages is
// /packages there.
func boot(t *testing.T, image, network, name, address, packages string) *host {
	t.Helper()
	h := &host{t: t, name: name, container: network + "-" + name, address: address}
	t.Cleanup(h.remove)
	_, err := docker("run", "--detach", "--name", h.container, "--hostname", name, "--network", network, "--ip", address,
		"--restart=always", "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_BOOT",
		"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
		"--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw",
		"--cgroupns=host", "--env", "container=docker",
		"--volume", "/var/lib/windlass", // on the disk of the engine, not in layers of an image
		"--volume", "/var/log/journal", // keeps the journal of earlier boots
		"--volume", packages+":/packages:ro", image, "/sbin/init")
	if err != nil {
		t.Fatal(err)
	}
	h.awaitBooted()
	return h
}

// remove removes the container and its disks, and shows the end of its logs if the test failed.
func (h *host) remove() {
	if h.t.Failed() {
		const logs = "journalctl --no-pager --output=short-precise --lines=40 --unit=windlass; " +
			"journalctl --no-pager --output=short-precise --lines=20 --priority=warning; " +
			"systemctl show --property=ActiveState,SubState,Result,MainPID,NRestarts windlass; " +
			"tail --verbose --lines=5 /var/lib/windlass/logs/*"
		out, err := docker("exec", h.container, "sh", "-c", logs+" 2>&1")
		h.t.Logf("%s: %v\n%s", h.name, err, out)
	}
	if _, err := docker("rm", "--force", "--volumes", h.container); err != nil {
		h.t.Error(err)
	}
}

// try runs a command on the host and returns its standard output.
func (h *host) try(command ...string) (string, error) {
	return docker(append([]string{"exec", h.container}, command...)...)
}

func (h *host) must(command ...string) string {
	h.t.Helper()
	out, err := h.try(command...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// install installs a version of the package, in place of another one if there is.
func (h *host) install(version string) {
	h.t.Helper()
	h.must("sh", "-c", "dpkg --install /packages/windlass_"+version+"_*.deb")
}

// awaitBooted waits until systemd has started all units, and fails the test if one failed.
func (h *host) awaitBooted() {
	h.t.Helper()
	await(h.t, h.name+" to boot", func() string {
		state, err := h.try("systemctl", "is-system-running")
		switch state {
		case "running":
			return ""
		case "degraded":
			h.t.Fatalf("units of %s failed:\n%s", h.name, h.must("systemctl", "list-units", "--failed"))
		}
		return fmt.Sprint(state, " ", err)
	})
}

// unit returns a property of windlass.service.
func (h *host) unit(property string) string {
	h.t.Helper()
	return h.must("systemctl", "show", "--property="+property, "--value", "windlass.service")
}

// programs returns the processes of each program of the host, by the pids that the engine has for them.
func (h *host) programs() map[string][]int {
	h.t.Helper()
	out, err := docker("top", h.container, "-eo", "pid,args")
	if err != nil {
		h.t.Fatal(err)
	}
	pids := map[string][]int{}
	for line := range strings.Lines(out) {
		// 4711 /usr/bin/windlass serve gateway …, the path of a release's executable, or the link that starts the member.
		fields := strings.Fields(line)
		if len(fields) < 4 || path.Base(fields[1]) != "windlass" || fields[2] != "serve" {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil {
			h.t.Fatal(err)
		}
		pids[fields[3]] = append(pids[fields[3]], pid)
	}
	for _, list := range pids {
		slices.Sort(list)
	}
	return pids
}

// pid returns the process of a program as the host numbers it; programs has the engine's numbers.
func (h *host) pid(program string) string {
	h.t.Helper()
	return h.must("sed", "-n", `s/.*"pid": *\([0-9]*\).*/\1/p`, "/var/lib/windlass/run/"+program+".json")
}

// start has the unit run the programs of a host that is in a cluster, and waits for all of them.
func (h *host) start() {
	h.t.Helper()
	h.must("systemctl", "enable", "--now", "windlass")
	h.dial()
	h.awaitOperators()
}

// join joins the host by a token of another one, and starts it.
func (h *host) join(other *host) {
	h.t.Helper()
	token := other.must("windlass", "host", "token", "--control-plane")
	h.must("windlass", "host", "join", token, "--address", h.address, "--zone", "zone-"+h.name)
	h.start()
}

// dial makes the administrator's connection to the gateway of this host.
func (h *host) dial() {
	h.t.Helper()
	dir := h.t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		content := h.must("cat", "/var/lib/windlass/admin/"+name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	files := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	cfg, err := files.ClientTLS(h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	creds := credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(topology.Gateway)))
	h.conn, err = grpc.NewClient("passthrough:///"+h.address+":6443", grpc.WithTransportCredentials(creds))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = h.conn.Close() })
}

// reboot reboots the host, and returns when it has new processes.
func (h *host) reboot() {
	h.t.Helper()
	const bootTime = "UserspaceTimestampMonotonic"
	before := h.must("systemctl", "show", "--property="+bootTime)
	_, _ = h.try("systemctl", "reboot") // it may end before the command does
	await(h.t, h.name+" to boot again", func() string {
		after, err := h.try("systemctl", "show", "--property="+bootTime)
		if err != nil || after == before {
			return fmt.Sprint(after, " ", err)
		}
		return ""
	})
	h.awaitBooted()
}

// stops returns what the unit has stopped each time that it ended the programs, in earlier boots too.
func (h *host) stops() (out [][]string) {
	h.t.Helper()
	journal := h.must("journalctl", "--no-pager", "--output=cat", "--unit=windlass.service")
	for line := range strings.Lines(journal) {
		if _, names, ok := strings.Cut(strings.TrimSpace(line), "processes stopped, in this order: "); ok {
			out = append(out, strings.Split(names, ", "))
		}
	}
	return out
}

// expected are the programs that every host runs.
func expected() []string {
	return slices.DeleteFunc(append(topology.Names(), topology.ProviderInventory), func(name string) bool {
		return name == topology.ProviderLocal
	})
}

// await waits until look returns "": what is missing.
func await(t *testing.T, what string, look func() string) {
	t.Helper()
	end := time.Now().Add(patience)
	if deadline, ok := t.Deadline(); ok {
		const cleaning = time.Minute // go ends the test at its deadline without its clean-up
		if deadline = deadline.Add(-cleaning); deadline.Before(end) {
			end = deadline
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		missing := look()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still waiting for %s: %s", what, missing)
		}
	}
}

// call returns the context of one call.
func call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}
