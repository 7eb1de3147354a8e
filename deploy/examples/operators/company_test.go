package main

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// cluster is an update-orchestrator with one version and one operator, which can be made to fail.
type cluster struct {
	updatev1.UnimplementedClusterVersionServiceServer
	updatev1.UnimplementedClusterOperatorServiceServer

	versions chan *updatev1.ClusterVersion

	mu       sync.Mutex
	refusals int // reports to refuse as unavailable
	operator *updatev1.ClusterOperator
	reported []string // of each report: whether it is progressing, and the version
	changed  chan struct{}
}

func (c *cluster) WatchClusterVersions(_ *updatev1.WatchClusterVersionsRequest,
	s grpc.ServerStreamingServer[updatev1.WatchClusterVersionsResponse],
) error {
	for {
		select {
		case cv := <-c.versions:
			if err := s.Send(&updatev1.WatchClusterVersionsResponse{Events: []*updatev1.WatchClusterVersionsResponse_Event{
				{Type: "MODIFIED", Object: cv},
			}}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (c *cluster) GetClusterOperator(context.Context, *updatev1.GetClusterOperatorRequest) (*updatev1.ClusterOperator,
	error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.operator == nil {
		return nil, status.Error(codes.NotFound, "none")
	}
	return proto.CloneOf(c.operator), nil
}

func (c *cluster) CreateClusterOperator(_ context.Context, req *updatev1.CreateClusterOperatorRequest) (
	*updatev1.ClusterOperator, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.operator = req.GetClusterOperator()
	return proto.CloneOf(c.operator), nil
}

func (c *cluster) UpdateClusterOperatorStatus(_ context.Context, req *updatev1.UpdateClusterOperatorStatusRequest) (
	*updatev1.ClusterOperator, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusals > 0 {
		c.refusals--
		return nil, status.Error(codes.Unavailable, "starting")
	}
	c.operator = req.GetClusterOperator()
	said := ""
	for _, condition := range c.operator.GetStatus().GetConditions() {
		if condition.GetType() == "Progressing" {
			said = condition.GetStatus()
		}
	}
	for _, v := range c.operator.GetStatus().GetVersions() {
		said += " " + v.GetVersion()
	}
	c.reported = append(c.reported, said)
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return proto.CloneOf(c.operator), nil
}

func (c *cluster) await(t *testing.T, want ...string) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		c.mu.Lock()
		have := append([]string(nil), c.reported...)
		c.mu.Unlock()
		if len(have) == len(want) {
			for i := range want {
				if have[i] != want[i] {
					t.Fatalf("reported %q, want %q", have, want)
				}
			}
			return
		}
		select {
		case <-c.changed:
		case <-limit:
			t.Fatalf("reported %q, want %q", have, want)
		}
	}
}

func at(version string, done bool, waits ...string) *updatev1.ClusterVersion {
	st := &updatev1.ClusterVersionStatus{
		Desired:  &updatev1.ReleaseReference{Version: &version},
		Progress: &updatev1.UpdateProgress{},
	}
	state := "Partial"
	if done {
		state = "Completed"
	}
	st.History = []*updatev1.UpdateHistory{{State: state, Version: &version}}
	for _, w := range waits {
		st.Progress.Waits = append(st.Progress.Waits, &updatev1.UpdateWait{
			Object: &metav1.ObjectReference{Kind: "ClusterOperator", Name: w},
		})
	}
	return &updatev1.ClusterVersion{Status: st}
}

func TestAnOperatorWorksWhenTheUpdateReachesIt(t *testing.T) {
	c := &cluster{versions: make(chan *updatev1.ClusterVersion), refusals: 1, changed: make(chan struct{}, 1)}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	updatev1.RegisterClusterVersionServiceServer(server, c)
	updatev1.RegisterClusterOperatorServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:cluster", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var out bytes.Buffer
	go func() {
		done <- newCompany(settings{names: []string{"ledger"}, work: time.Millisecond},
			updatev1.NewClusterVersionServiceClient(conn), updatev1.NewClusterOperatorServiceClient(conn), &out).run(ctx)
	}()
	c.versions <- at("1.0.0", false, "archive") // not its turn
	c.versions <- at("1.0.0", true)
	c.await(t, "True", "False 1.0.0")
	c.versions <- at("1.1.0", false)
	c.versions <- at("1.1.0", false, "archive", "ledger")
	c.await(t, "True", "False 1.0.0", "True 1.0.0", "False 1.1.0")
	c.versions <- at("1.1.0", true) // its turn
	c.versions <- at("1.1.0", true)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.await(t, "True", "False 1.0.0", "True 1.0.0", "False 1.1.0")
}

func TestSettingsMustSayWhereTheClusterIs(t *testing.T) {
	t.Setenv("WINDLASS_SERVER", "")
	for _, args := range [][]string{{}, {"--server", "a:1", "--operators", ","}, {"--server", "a:1", "more"}} {
		if _, err := parse(args, &bytes.Buffer{}); err == nil {
			t.Errorf("parse(%q) returns no error", args)
		}
	}
}
