package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// cluster is a hook-broker with one task, which can be made to fail.
type cluster struct {
	hookv1.UnimplementedHookTaskServiceServer

	mu       sync.Mutex
	breaks   int  // streams to end right after the list
	refusals int  // claims to refuse as unavailable
	mute     bool // it answers no renewal
	claims   int
	task     *hookv1.HookTask
	renewals int
	reasons  []string
	changed  chan struct{} // closed and replaced with each change
}

func newCluster() *cluster {
	return &cluster{changed: make(chan struct{}), task: &hookv1.HookTask{
		Metadata: &metav1.ObjectMeta{Name: "3f2a9c41-preterminate-0011223344"},
		Spec: &hookv1.HookTaskSpec{
			MachineRef: &metav1.ObjectReference{Name: "master-0"}, Point: "PreTerminate", HookName: "BackupFileSystem",
			Owner: "my-backup-controller",
		},
		Status: &hookv1.HookTaskStatus{Phase: proto.String("Pending")},
	}}
}

func (c *cluster) set(phase, message string, claim time.Duration) *hookv1.HookTask {
	c.task = proto.Clone(c.task).(*hookv1.HookTask)
	c.task.Status = &hookv1.HookTaskStatus{Phase: &phase, Message: &message}
	if claim > 0 {
		c.task.Status.ClaimTime = timestamppb.Now()
		c.task.Status.ClaimExpiryTime = timestamppb.New(time.Now().Add(claim))
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return c.task
}

func (c *cluster) StreamHookTasks(_ *hookv1.StreamHookTasksRequest,
	s grpc.ServerStreamingServer[hookv1.StreamHookTasksResponse],
) error {
	for first := true; ; first = false {
		c.mu.Lock()
		task, changed, broken := c.task, c.changed, c.breaks > 0
		if broken {
			c.breaks--
		}
		c.mu.Unlock()
		if err := s.Send(&hookv1.StreamHookTasksResponse{Task: task}); err != nil {
			return err
		}
		if first {
			if err := s.Send(&hookv1.StreamHookTasksResponse{}); err != nil {
				return err
			}
		}
		if broken {
			return status.Error(codes.Unavailable, "the service is stopping")
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (c *cluster) ClaimHookTask(context.Context, *hookv1.ClaimHookTaskRequest) (*hookv1.HookTask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusals > 0 {
		c.refusals--
		return nil, status.Error(codes.Unavailable, "starting")
	}
	c.claims++
	return c.set("Claimed", "", 300*time.Millisecond), nil
}

func (c *cluster) RenewHookTask(context.Context, *hookv1.RenewHookTaskRequest) (*hookv1.HookTask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute {
		return nil, status.Error(codes.Unavailable, "no answer")
	}
	c.renewals++
	return c.set("Claimed", "", time.Second), nil
}

func (c *cluster) CompleteHookTask(_ context.Context, r *hookv1.CompleteHookTaskRequest) (*hookv1.HookTask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.set("Completed", r.GetMessage(), 0), nil
}

func (c *cluster) FailHookTask(_ context.Context, r *hookv1.FailHookTaskRequest) (*hookv1.HookTask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reasons = append(c.reasons, r.GetReason())
	return c.set("Failed", r.GetReason(), 0), nil
}

func (c *cluster) phase() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.task.GetStatus().GetPhase()
}

// serve returns a client of the cluster.
func serve(t *testing.T, c *cluster) hookv1.HookTaskServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	hookv1.RegisterHookTaskServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:cluster", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return hookv1.NewHookTaskServiceClient(conn)
}

func TestATaskIsCompletedAlthoughTheStreamBreaksAndTheClusterIsUnavailableForAMoment(t *testing.T) {
	c := newCluster()
	c.breaks, c.refusals = 2, 2
	dir := t.TempDir()
	var lines bytes.Buffer
	o := newOwner(settings{owner: "my-backup-controller", work: 400 * time.Millisecond, out: dir, once: true}, serve(t, c),
		&lines)
	if err := o.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.phase(); got != "Completed" {
		t.Errorf("phase = %s, want Completed", got)
	}
	if c.renewals == 0 {
		t.Error("the claim was not renewed while the work went on")
	}
	if _, err := os.Stat(filepath.Join(dir, "master-0-BackupFileSystem.tar")); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"claimed    PreTerminate BackupFileSystem of machine master-0", "stream broke",
		"completed",
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("output has no %q:\n%s", want, lines.String())
		}
	}
}

// The claim may have ended then, and another owner may be at work.
func TestTheWorkEndsWhenNoRenewalIsAnsweredInTime(t *testing.T) {
	c := newCluster()
	c.mute = true
	file := filepath.Join(t.TempDir(), "pids")
	var lines bytes.Buffer
	o := newOwner(settings{owner: "my-backup-controller", command: "sleep 300 & echo $! >> " + file + "; wait"},
		serve(t, c),
		&lines)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.run(ctx) }()
	for deadline := time.After(time.Minute); ; {
		c.mu.Lock()
		claims, changed := c.claims, c.changed
		c.mu.Unlock()
		if claims > 1 { // the first work has ended, with what it started
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the work goes on without a claim")
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // a killed process ends soon
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("what the command started still runs: %s", state)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAFailedCommandIsReportedWithItsOutput(t *testing.T) {
	c := newCluster()
	var lines bytes.Buffer
	o := newOwner(settings{owner: "my-backup-controller", command: "echo disk full of $HOOK_MACHINE; exit 3"}, serve(t, c),
		&lines)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.run(ctx) }()
	for {
		c.mu.Lock()
		reasons, changed := c.reasons, c.changed
		c.mu.Unlock()
		if len(reasons) > 0 {
			if want := "exit status 3: disk full of master-0"; reasons[0] != want {
				t.Errorf("reason = %q, want %q", reasons[0], want)
			}
			break
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			t.Fatal("nothing failed")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
