package conformance_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/windlass/conformance"
)

// example is a provider as its author might write it, that breaks at most one rule.
type example struct {
	providerv1.UnimplementedProviderServiceServer
	breaks string

	mu        sync.Mutex
	made      int
	fence     int64
	instances map[string]*providerv1.Instance // by token
	used      map[string]bool
	changes   []*providerv1.WatchInstancesResponse
	changed   chan struct{} // closed at each change
}

func (e *example) tell(m *providerv1.WatchInstancesResponse) {
	e.changes = append(e.changes, m)
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *example) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	out := &providerv1.GetProviderInfoResponse{
		Name: "example", Platform: "Example", ProviderSpecKinds: []string{"Spec"},
		TokenRetention: durationpb.New(time.Hour),
	}
	if e.breaks == "info" {
		out.ProviderSpecKinds = nil
	}
	return out, nil
}

func (e *example) ValidateProviderSpec(_ context.Context, r *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	for field := range r.GetProviderSpec().GetFields() {
		if field != "kind" && e.breaks != "spec-refused" {
			return nil, rpcerr.Invalid(object.Fault{Path: field, Description: "unknown field"})
		}
	}
	if e.breaks == "spec-accepted" {
		return nil, rpcerr.Invalid(object.Fault{Path: "kind", Description: "no"})
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

func (e *example) CreateInstance(_ context.Context, r *providerv1.CreateInstanceRequest) (*providerv1.Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.GetFence() < e.fence {
		return nil, status.Error(codes.FailedPrecondition, "fenced")
	}
	e.fence = r.GetFence()
	token := r.GetRequestToken()
	if i, ok := e.instances[token]; ok && e.breaks != "create-again" {
		return i, nil
	}
	if e.used[token] {
		return nil, status.Error(codes.FailedPrecondition, "used")
	}
	e.made++
	id := fmt.Sprintf("example://%04d", e.made)
	if e.breaks == "id-new" {
		id = "example://" + r.GetMachine().GetName()
	}
	i := &providerv1.Instance{
		ProviderId: id, MachineName: r.GetMachine().GetName(), MachineUid: r.GetMachine().GetUid(), State: "Running",
		CreateTime: timestamppb.Now(), RequestToken: token, Fence: r.GetFence(),
	}
	if e.breaks == "create" {
		i.MachineUid = ""
	}
	if e.breaks == "runs" {
		i.State = "Creating"
	}
	e.instances[token] = i
	if e.breaks != "watch-changes" {
		e.tell(&providerv1.WatchInstancesResponse{Instance: i})
	}
	return i, nil
}

func (e *example) find(id, token string, both bool) *providerv1.Instance {
	for t, i := range e.instances {
		byID, byToken := id == "" || i.GetProviderId() == id, token == "" || t == token
		if both && byID && byToken || !both && (id != "" && byID || id == "" && byToken) {
			return i
		}
	}
	return nil
}

func (e *example) GetInstance(_ context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.find(r.GetProviderId(), r.GetRequestToken(), e.breaks != "get-mismatch")
	if i == nil || e.breaks == "get" && r.GetProviderId() == "" {
		return nil, status.Error(codes.NotFound, "none")
	}
	return i, nil
}

func (e *example) ListInstances(context.Context, *providerv1.ListInstancesRequest) (*providerv1.ListInstancesResponse,
	error,
) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := &providerv1.ListInstancesResponse{}
	for _, i := range e.instances {
		out.Instances = append(out.Instances, i)
	}
	slices.SortFunc(out.Instances, func(a, b *providerv1.Instance) int {
		if e.breaks == "list" {
			a, b = b, a
		}
		return slices.Compare([]byte(a.GetProviderId()), []byte(b.GetProviderId()))
	})
	return out, nil
}

func (e *example) DeleteInstance(_ context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.GetFence() < e.fence && e.breaks != "fence" {
		return nil, status.Error(codes.FailedPrecondition, "fenced")
	}
	e.fence = max(e.fence, r.GetFence())
	i := e.find(r.GetProviderId(), r.GetRequestToken(), e.breaks != "delete-mismatch")
	switch {
	case i == nil && e.find(r.GetProviderId(), "", true) != nil && r.GetProviderId() != "":
		return nil, status.Error(codes.FailedPrecondition, "of different instances")
	case i == nil && e.breaks == "delete-again" && e.used[r.GetRequestToken()]:
		return nil, status.Error(codes.NotFound, "none")
	case i == nil:
		if e.breaks != "delete-first" && e.breaks != "token-used" {
			e.used[r.GetRequestToken()] = true
		}
		return &providerv1.DeleteInstanceResponse{Fence: e.fence}, nil
	case e.breaks == "delete":
		return nil, status.Error(codes.Unimplemented, "no")
	}
	delete(e.instances, i.GetMachineUid())
	if e.breaks != "token-used" {
		e.used[i.GetMachineUid()] = true
	}
	if e.breaks != "watch-deletes" {
		e.tell(&providerv1.WatchInstancesResponse{Instance: proto.CloneOf(i), Deleted: true})
	}
	return &providerv1.DeleteInstanceResponse{}, nil
}

func (e *example) WatchInstances(_ *providerv1.WatchInstancesRequest,
	s grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	if e.breaks == "watch-begins" {
		<-s.Context().Done()
		return s.Context().Err()
	}
	if err := s.Send(&providerv1.WatchInstancesResponse{Synced: true}); err != nil {
		return err
	}
	for sent := 0; ; {
		e.mu.Lock()
		changes, changed := e.changes, e.changed
		e.mu.Unlock()
		for ; sent < len(changes); sent++ {
			if err := s.Send(changes[sent]); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func verify(t *testing.T, breaks string, limit time.Duration) map[string]conformance.Result {
	t.Helper()
	_, conn := served(t, breaks)
	out := map[string]conformance.Result{}
	for _, r := range conformance.Run(t.Context(), conn, conformance.Options{Spec: spec(), Limit: limit}) {
		out[r.Name] = r
	}
	return out
}

func spec() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue("Spec")}}
}

func served(t *testing.T, breaks string) (*example, *grpc.ClientConn) {
	t.Helper()
	e := &example{
		breaks: breaks, instances: map[string]*providerv1.Instance{}, used: map[string]bool{},
		changed: make(chan struct{}),
	}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	providerv1.RegisterProviderServiceServer(server, e)
	go server.Serve(listener) //nolint:errcheck // it ends with the test
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return e, conn
}

func TestAProviderThatKeepsTheRulesPasses(t *testing.T) {
	for _, r := range verify(t, "", time.Minute) {
		if r.Err != nil || r.Skipped != "" {
			t.Errorf("%s: %v %s", r.Name, r.Err, r.Skipped)
		}
	}
}

func TestEachRuleIsFoundBroken(t *testing.T) {
	for name := range verify(t, "", time.Minute) {
		switch name {
		case "create-at-once", "clean": // not to be broken without others
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r := verify(t, name, 200*time.Millisecond)[name]; r.Err == nil {
				t.Errorf("it was not found: %+v", r)
			}
		})
	}
}

// An interrupt breaks no rule, and nothing stays of what was made.
func TestAnInterruptedCheckDeletesWhatItMade(t *testing.T) {
	e, conn := served(t, "")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	created := false
	for _, r := range conformance.Run(ctx, conn, conformance.Options{Spec: spec(), Done: func(r conformance.Result) {
		if r.Name == "create" {
			created = true
			interrupt()
		}
	}}) {
		skipped := created && slices.Index(conformance.Names(), r.Name) > slices.Index(conformance.Names(), "create") &&
			r.Name != "clean"
		if r.Err != nil || (r.Skipped == "interrupted") != skipped {
			t.Errorf("%s: %v, skipped %q", r.Name, r.Err, r.Skipped)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.made == 0 || len(e.instances) != 0 {
		t.Errorf("of %d instances %d are left", e.made, len(e.instances))
	}
}
