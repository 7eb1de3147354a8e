package cri_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

const (
	parentAnnotation = "windlass.dev/cgroup-parent"
	fewProcesses     = 30 // a limit that the sandbox and a start have room in
)

// limitable returns why pools have no limit of processes on this host; nil if they have.
func limitable(t *testing.T) error {
	t.Helper()
	return cgroup.FindParents(t.Name()).CanLimitProcesses()
}

// groupOf returns the path of a pool's control group in each hierarchy.
func groupOf(c *critest.Containerd, pool string) string {
	return cgroup.FindParents(ownerOf(c)).Path(pool)
}

// setting returns what a file of a pool's control group has.
func setting(t *testing.T, c *critest.Containerd, pool, controller, file string) string {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup"} {
		if data, err := os.ReadFile(filepath.Join(mount, groupOf(c, pool), file)); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("pool %s has no %s", pool, file)
	return ""
}

func limitOf(t *testing.T, c *critest.Containerd, pool string) string {
	t.Helper()
	return setting(t, c, pool, "pids", "pids.max")
}

// awaitNoGroup waits until no hierarchy has a control group of a pool.
func awaitNoGroup(t *testing.T, c *critest.Containerd, pool string) {
	t.Helper()
	await(t, "end of the control group", func() bool {
		left, err := filepath.Glob("/sys/fs/cgroup/*" + groupOf(c, pool))
		_, unified := os.Stat("/sys/fs/cgroup" + groupOf(c, pool))
		return err == nil && len(left) == 0 && errors.Is(unified, os.ErrNotExist)
	})
}

// processesOf returns how many processes a pool has, as its use says.
func processesOf(t *testing.T, r *client, pool string) int {
	t.Helper()
	uses, err := r.Uses(t.Context(), []string{pool})
	if err != nil {
		t.Fatal(err)
	}
	return uses[pool].Processes
}

func TestAForkBombIsHeldInItsPool(t *testing.T) {
	if err := limitable(t); err != nil {
		t.Skip(err)
	}
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	limits := cgroup.Limits{Processes: fewProcesses, MilliCPURequest: 250}
	bomb, beside := b.spec("pod.a", "bomb", "bomb", "200"), b.spec("pod.b", "main", "wait", "/notes/beside")
	bomb.PoolLimits, beside.PoolLimits = limits, limits
	ensure(t, r, beside)
	awaitStatus(t, r, beside.Name, runs)
	ensure(t, r, bomb)
	awaitStatus(t, r, bomb.Name, runs)
	if err := r.CanLimitProcesses(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, "as many processes as there may be", func() bool { return processesOf(t, r, "pod.a") == fewProcesses })
	if got := limitOf(t, c, "pod.a"); got != "30" {
		t.Errorf("limit %s", got)
	}
	if got := setting(t, c, "pod.a", "cpu", "cpu.shares"); got != "256" && got != "10" { // in the unified hierarchy
		t.Errorf("weight %s", got)
	}
	if st, _ := r.Lookup(bomb.Name); !st.Running {
		t.Errorf("status %+v", st)
	}

	// The runtime moves the first process of a command into the pool, which the kernel does not refuse at the limit. It
	// cannot start threads there.
	out, code, err := r.ExecSync(t.Context(), bomb.Name, []string{"/program", "print", "on"}, 100)
	if code == 0 && err == nil {
		t.Errorf("a command in the pool that needs several threads: %q", out)
	}

	// Another pool goes on.
	if n := processesOf(t, r, "pod.b"); n == 0 || n >= fewProcesses {
		t.Errorf("the pool beside it has %d processes", n)
	}
	out, code, err = r.ExecSync(t.Context(), beside.Name, []string{"/program", "print", "on"}, 100)
	if string(out) != "on\n" || code != 0 || err != nil {
		t.Errorf("a command in the pool beside it: %q, %d, %v", out, code, err)
	}
	next := b.spec("pod.b", "next", "wait")
	next.PoolLimits = cgroup.Limits{Processes: 50, MilliCPURequest: 500}
	ensure(t, r, next)
	awaitStatus(t, r, next.Name, runs)
	if got, shares := limitOf(t, c, "pod.b"), setting(t, c, "pod.b", "cpu", "cpu.shares"); got != "50" ||
		shares != "512" && shares != "20" {
		t.Errorf("limit %s and weight %s after another container was started", got, shares)
	}

	for _, pool := range []string{"pod.a", "pod.b"} {
		if err := r.EndPool(t.Context(), pool); err != nil {
			t.Error(err)
		}
		awaitNoGroup(t, c, pool)
	}
}

// TestAnAgentIsKilledWhilePoolsHaveGroups leaves a pool that runs, one whose sandbox was never made, and one whose
// sandbox was removed by other means.
func TestAnAgentIsKilledWhilePoolsHaveGroups(t *testing.T) {
	if err := limitable(t); err != nil {
		t.Skip(err)
	}
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	kept, removed := b.spec("pod.kept", "main", "wait"), b.spec("pod.removed", "main", "wait")
	kept.PoolLimits = cgroup.Limits{Processes: fewProcesses}
	for _, s := range []cri.Spec{kept, removed} {
		ensure(t, r, s)
		awaitStatus(t, r, s.Name, runs)
	}
	r.end()
	if _, err := cgroup.FindParents(ownerOf(c)).Make("pod.never", cgroup.Limits{Processes: 1}); err != nil {
		t.Fatal(err)
	}
	other := cgroup.FindParents("other " + ownerOf(c))
	if _, err := other.Make("pod.other", cgroup.Limits{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Remove("pod.other"); err != nil {
			t.Error(err)
		}
	})
	list, err := c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.GetItems() {
		if s.GetMetadata().GetUid() == removed.Pool {
			_, err := c.CRI().StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.GetId()})
			_, err2 := c.CRI().RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
		}
	}

	r = begin(t, c)
	<-r.Active()
	got, err := r.Recorded(t.Context())
	if want := []string{kept.Name, "pod.never.", "pod.removed."}; err != nil || !slices.Equal(got, want) {
		t.Errorf("recorded: %v, %v, want %v", got, err, want)
	}
	kept.Serial, kept.LogPath, kept.PoolLimits.Processes = 2, "main/2/log", fewProcesses+1
	ensure(t, r, kept) // in the sandbox that there is
	awaitStatus(t, r, kept.Name, func(st cri.Status) bool { return st.Running && st.Serial == 2 })
	if got := limitOf(t, c, kept.Pool); got != "31" {
		t.Errorf("limit %s", got)
	}
	for _, pool := range []string{kept.Pool, "pod.never", removed.Pool} {
		if err := r.EndPool(t.Context(), pool); err != nil {
			t.Error(err)
		}
		awaitNoGroup(t, c, pool)
	}
	if got, err := r.Recorded(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("recorded: %v, %v", got, err)
	}
}

// said is a runtime that only says how it is configured.
type said struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	linux  *runtimeapi.LinuxRuntimeConfiguration
	err    error
	config string
}

func (s said) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse,
	error,
) {
	return &runtimeapi.RuntimeConfigResponse{Linux: s.linux}, s.err
}

func (s said) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Info: map[string]string{"config": s.config}}, nil
}

func TestTheDriverOfControlGroupsIsThatOfTheRuntime(t *testing.T) {
	if err := limitable(t); err != nil {
		t.Skip(err)
	}
	const systemd, unknown = "uses the systemd cgroup driver", "does not say which cgroup driver"
	old := status.Error(codes.Unimplemented, "unknown method")
	for name, tc := range map[string]struct {
		of   said
		want string // in the error; empty: none
	}{
		"containerd 2 with cgroupfs": {of: said{linux: &runtimeapi.LinuxRuntimeConfiguration{
			CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS,
		}}},
		"containerd 2 with systemd": {said{linux: &runtimeapi.LinuxRuntimeConfiguration{}}, systemd},
		"no Linux":                  {said{}, unknown},
		"an error":                  {said{err: status.Error(codes.Internal, "broken")}, "broken"},
		"containerd 1 with cgroupfs": {of: said{err: old, config: `{"containerd":{"defaultRuntimeName":"runc",
			"runtimes":{"runc":{"options":{"SystemdCgroup":false}},"other":{"options":{"SystemdCgroup":true}}}}}`}},
		"containerd 1 without options": {of: said{err: old, config: `{"containerd":{"defaultRuntimeName":"runc",
			"runtimes":{"runc":{"options":null}}}}`}},
		"containerd 1 with systemd": {said{err: old, config: `{"containerd":{"defaultRuntimeName":"runc",
			"runtimes":{"runc":{"options":{"BinaryName":"/runc","SystemdCgroup":true}}}}}`}, systemd},
		"containerd 1 with systemd for all": {said{err: old, config: `{"containerd":{},"systemdCgroup":true}`}, systemd},
		"an old CRI-O": {
			said{err: old, config: "[crio.runtime]\ncgroup_manager = \"systemd\"\n"},
			unknown,
		},
		"nothing": {said{err: old}, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "cri") // the path of a socket must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			listener, err := net.Listen("unix", filepath.Join(dir, "sock"))
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			runtimeapi.RegisterRuntimeServiceServer(server, tc.of)
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(listener) }()
			t.Cleanup(func() {
				server.Stop()
				<-ended
			})
			r, err := cri.New(cri.Config{Endpoint: "unix://" + listener.Addr().String(), Owner: t.Name()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = r.CanLimitProcesses(ctx)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			ctx, cancel = context.WithCancel(t.Context())
			cancel()
			_ = r.Run(ctx) // closes the connection
		})
	}
}

// withSystemd is a client of a runtime that says that it uses the systemd driver.
type withSystemd struct {
	runtimeapi.RuntimeServiceClient
}

func (withSystemd) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest, ...grpc.CallOption) (
	*runtimeapi.RuntimeConfigResponse, error,
) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{
		CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD,
	}}, nil
}

// TestPoolsRunWithoutGroups is about the systemd driver, and about sandboxes of agents of the version before.
func TestPoolsRunWithoutGroups(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	var log bytes.Buffer
	r, err := cri.New(cri.Config{Endpoint: c.Endpoint, Owner: ownerOf(c), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.Wrap(func(of runtimeapi.RuntimeServiceClient) runtimeapi.RuntimeServiceClient { return withSystemd{of} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	first := &client{r, end}
	for _, pool := range []string{"pod.a", "pod.b"} {
		spec := b.spec(pool, "main", "wait")
		spec.PoolLimits.Processes = fewProcesses
		ensure(t, first, spec)
		awaitStatus(t, first, spec.Name, runs)
	}
	first.end()
	if n := strings.Count(log.String(), "systemd cgroup driver"); n != 1 {
		t.Errorf("it is logged %d times: %s", n, log.String())
	}

	next := begin(t, c)
	beside := b.spec("pod.a", "beside", "wait")
	beside.PoolLimits.Processes = fewProcesses
	ensure(t, next, beside)
	awaitStatus(t, next, beside.Name, runs)
	for _, pool := range []string{"pod.a", "pod.b"} {
		awaitNoGroup(t, c, pool)
		if err := next.EndPool(t.Context(), pool); err != nil {
			t.Error(err)
		}
	}
}
