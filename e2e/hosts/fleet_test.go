// Package hosts tests a control plane on three hosts, each a loopback address with a directory and processes of its
// own: what one host loses the others do.
package hosts

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/e2e/harness"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// patience is for what is waited for: it costs time only in a test that fails.
const patience = 3 * time.Minute

// host is one host of a test.
type host struct {
	t       *testing.T
	bin     string
	name    string
	address string
	dir     string
	space   *space    // nil: that of the test
	run     *exec.Cmd // windlass host run; nil while it does not run
}

// fleet is three hosts, of which the first has begun the cluster, and one more that may join later.
type fleet struct {
	t     *testing.T
	hosts []*host
	spare *host
}

// newFleet begins a cluster on the first of three hosts, joins the others and runs the programs of all.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	bin, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	subnet := freeSubnet(t)
	f := &fleet{t: t}
	for i := 1; i <= 4; i++ {
		h := &host{
			t: t, bin: bin, name: fmt.Sprintf("h%d", i), address: fmt.Sprintf("%s.%d", subnet, i),
			dir: filepath.Join(t.TempDir(), "windlass"),
		}
		f.hosts = append(f.hosts, h)
		t.Cleanup(h.stop)
	}
	f.hosts, f.spare = f.hosts[:3], f.hosts[3]
	f.begin()
	return f
}

// begin begins the cluster on the first of the three hosts, joins the others and runs the programs of all.
func (f *fleet) begin() {
	f.t.Helper()
	first := f.hosts[0]
	first.must("host", "init", "--address", first.address, "--hostname", first.name, "--zone", "zone-1", "--dir",
		first.dir)
	first.start()
	f.await("the first host in the inventory", func() string {
		if out, code := first.ask("get", "hosts", first.name); code != 0 {
			return out
		}
		return ""
	})
	for i, h := range f.hosts[1:] {
		h.join(f.hosts[i], "--control-plane") // by the one before
		h.start()
		f.await("the gateway of "+h.name, func() string {
			if out, code := h.ask("get", "hosts"); code != 0 {
				return out
			}
			return ""
		})
	}
}

// freeSubnet returns three numbers of an address on the loopback network that no other cluster uses: those of
// `windlass up` begin with 127.16.
func freeSubnet(t *testing.T) string {
	t.Helper()
	for i := range 256 {
		subnet := fmt.Sprintf("127.15.%d", (os.Getpid()+i)%256)
		l, err := net.Listen("tcp", subnet+".1:6443")
		if err == nil {
			l.Close()
			return subnet
		}
	}
	t.Fatal("no free addresses")
	return ""
}

// cli runs the executable and returns its output and exit code.
func (h *host) cli(args ...string) (string, int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.bin, args...)
	out, err := h.output(cmd)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("windlass %v: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// output runs a command on the host and returns its output.
func (h *host) output(cmd *exec.Cmd) (out []byte, err error) {
	err = h.space.do(func() error {
		out, err = cmd.CombinedOutput()
		return err
	})
	return out, err
}

// stdout is cli without what the command says on its standard error.
func (h *host) stdout(args ...string) (string, int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.bin, args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	err := h.space.do(cmd.Run)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("windlass %v: %v", args, err)
	}
	return strings.TrimSpace(out.String()), cmd.ProcessState.ExitCode()
}

func (h *host) must(args ...string) string {
	h.t.Helper()
	out, code := h.cli(args...)
	if code != 0 {
		h.t.Fatalf("windlass %v: exit code %d\n%s", args, code, out)
	}
	return out
}

// ask runs a command as the administrator at the gateway of this host.
func (h *host) ask(args ...string) (string, int) {
	h.t.Helper()
	return h.cli(append(args, "--server", h.address+":6443", "--cacert", filepath.Join(h.dir, "admin", "ca.crt"),
		"--cert", filepath.Join(h.dir, "admin", "tls.crt"), "--key", filepath.Join(h.dir, "admin", "tls.key"))...)
}

// here runs a command on this host, which finds the cluster by itself.
func (h *host) here(args ...string) (string, int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.bin, args...)
	cmd.Env = append(os.Environ(), "WINDLASS_HOST_DIR="+h.dir, "WINDLASS_HOME="+h.t.TempDir())
	out, err := h.output(cmd)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("windlass %v: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// mustAsk is ask for a command that has to succeed.
func (h *host) mustAsk(args ...string) {
	h.t.Helper()
	if out, code := h.ask(args...); code != 0 {
		h.t.Fatalf("windlass %v at %s: exit code %d\n%s", args, h.name, code, out)
	}
}

// inventory returns this host as the inventory has it, asked at the gateway of at.
func (h *host) inventory(at *host) (*hostv1.Host, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := at.conn()
	defer conn.Close()
	return hostv1.NewHostServiceClient(conn).GetHost(ctx, &hostv1.GetHostRequest{Name: h.name})
}

// missing returns "" if the inventory has this host in a phase, and otherwise in which one, asked at the gateway of at.
func (h *host) missing(phase string, at *host) string {
	got, err := h.inventory(at)
	if is := got.GetStatus().GetPhase(); err != nil || is != phase {
		return fmt.Sprintf("host %s is %q: %s %v", h.name, is, got.GetStatus().GetMessage(), err)
	}
	return ""
}

// machine returns the name of the machine that has this host, asked at the gateway of at.
func (h *host) machine(at *host) string {
	h.t.Helper()
	got, err := h.inventory(at)
	if err != nil || got.GetStatus().GetMachineRef() == nil {
		h.t.Fatalf("host %s: %v, %v", h.name, got.GetStatus(), err)
	}
	return got.GetStatus().GetMachineRef().GetName()
}

// voters returns "" if the quorum is stable with n voters, and otherwise what it waits for, as the gateway of this host
// says.
func (h *host) voters(n int) string {
	q, healthy, err := h.quorum()
	if err != nil {
		return err.Error()
	}
	if healthy == n && len(q.GetMembers()) == n && q.GetPhase() == "Stable" {
		return ""
	}
	return fmt.Sprintf("%d of %d members are healthy voters, phase %s, waits for %q", healthy, len(q.GetMembers()),
		q.GetPhase(), q.GetWaitsFor())
}

// quorum returns the quorum as the gateway of this host says, and how many voters are healthy besides the bootstrap
// member.
func (h *host) quorum() (q *etcdv1.Quorum, healthy int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	q, err = etcdv1.NewQuorumServiceClient(conn).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
	for _, m := range q.GetMembers() {
		if m.GetHealthy() && !m.GetLearner() && !m.GetBootstrap() {
			healthy++
		}
	}
	return q, healthy, err
}

// conn is the administrator's connection to the gateway of this host.
func (h *host) conn() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+h.address+":6443",
		grpc.WithTransportCredentials(credentials.NewTLS(h.tls())), grpc.WithContextDialer(h.dial),
		dial.Reconnect(50*time.Millisecond, 250*time.Millisecond, 2*time.Second))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// dial connects to an address from this host.
func (h *host) dial(ctx context.Context, address string) (net.Conn, error) {
	return h.space.dial(ctx, "tcp", address)
}

// tls is for the administrator's connections to the gateway of this host.
func (h *host) tls() *tls.Config {
	h.t.Helper()
	files := identity.Files{
		Cert: filepath.Join(h.dir, "admin", "tls.crt"), Key: filepath.Join(h.dir, "admin", "tls.key"),
		CA: filepath.Join(h.dir, "admin", "ca.crt"),
	}
	cfg, err := files.ClientTLS(h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	return identity.WithURI(cfg, identity.ServiceURI(topology.Gateway))
}

// join joins the host by a token that another one makes with flags.
func (h *host) join(other *host, flags ...string) {
	h.t.Helper()
	token, code := h.stdout(append([]string{"host", "token", "--dir", other.dir}, flags...)...)
	if code != 0 {
		h.t.Fatalf("no token: %s", token)
	}
	h.must("host", "join", token, "--address", h.address, "--hostname", h.name, "--zone", "zone-"+h.name, "--dir", h.dir)
}

// start runs the programs of the host.
func (h *host) start() {
	h.t.Helper()
	log, err := os.OpenFile(filepath.Join(h.dir, "run.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.run = exec.Command(h.bin, "host", "run", "--dir", h.dir)
	h.run.Stdout, h.run.Stderr = log, log
	if err := h.space.do(h.run.Start); err != nil {
		h.t.Fatal(err)
	}
}

// halt kills windlass host run, so that nothing is started again.
func (h *host) halt() {
	if h.run == nil {
		return
	}
	_ = h.run.Process.Kill()
	_ = h.run.Wait()
	h.run = nil
}

// lose kills everything of the host at once.
func (h *host) lose() {
	h.t.Helper()
	h.halt()
	if h.space != nil {
		killInside(h.t, h.space.handle) // the pods, too
		return
	}
	for _, pid := range h.pids("") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// kill kills one program of the host.
func (h *host) kill(program string) {
	h.t.Helper()
	pids := h.pids(program)
	if len(pids) == 0 {
		h.t.Fatalf("%s does not run on %s", program, h.name)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			h.t.Fatal(err)
		}
	}
}

// pids returns the processes of a program of this host, of all with "".
func (h *host) pids(program string) (out []int) {
	h.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		if err != nil || len(args) < 3 || args[1] != "serve" || program != "" && args[2] != program {
			continue
		}
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, h.dir+"/") }) {
			out = append(out, pid)
		}
	}
	return out
}

// stop ends all processes of the host, and shows the end of its logs if the test failed.
func (h *host) stop() {
	h.lose()
	if !h.t.Failed() {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(h.dir, "logs", "*.log"))
	for _, log := range append(logs, filepath.Join(h.dir, "run.log")) {
		raw, err := os.ReadFile(log)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		h.t.Logf("%s %s:\n%s", h.name, filepath.Base(log), strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

// await waits until look returns "": what is missing.
func (f *fleet) await(what string, look func() string) {
	f.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		missing := look()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("after %s still waiting for %s: %s", patience, what, missing)
		}
	}
}
