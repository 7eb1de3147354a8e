package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	storedv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// nodes is a service that answers with who called it, in place of the node that was asked for.
type nodes struct {
	nodev1.UnimplementedNodeServiceServer
	nodev1.UnimplementedNodeAgentServiceServer
	machinev1.UnimplementedJoinServiceServer
}

func answer(ctx context.Context, name string) (*nodev1.Node, error) {
	caller, _ := CallerFrom(ctx)
	return &nodev1.Node{Kind: caller.User, Metadata: &metav1.ObjectMeta{Name: name, ResourceVersion: "43"}}, nil
}

func (nodes) GetNode(ctx context.Context, r *nodev1.GetNodeRequest) (*nodev1.Node, error) {
	return answer(ctx, r.GetName())
}

func (nodes) CreateNode(ctx context.Context, r *nodev1.CreateNodeRequest) (*nodev1.Node, error) {
	return answer(ctx, r.GetNode().GetMetadata().GetName())
}

func (nodes) DeleteNode(context.Context, *nodev1.DeleteNodeRequest) (*nodev1.Node, error) {
	return nil, errors.New("secret cause")
}

func (nodes) RegisterNode(ctx context.Context, r *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	caller, _ := CallerFrom(ctx)
	if _, ok := caller.Node(); !ok {
		return nil, rpcerr.Forbidden("only a node registers")
	}
	Describe(ctx, "", "registered", "with a test")
	if err := BeforeChange(ctx); err != nil {
		return nil, err
	}
	return answer(ctx, "registered")
}

func (nodes) WatchNodes(_ *nodev1.WatchNodesRequest, s grpc.ServerStreamingServer[nodev1.WatchNodesResponse]) error {
	return s.Send(&nodev1.WatchNodesResponse{})
}

func (nodes) Heartbeat(s grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	caller, _ := CallerFrom(s.Context())
	if _, ok := caller.Node(); !ok {
		return rpcerr.Forbidden("only a node has a heart")
	}
	return s.Send(&nodev1.HeartbeatResponse{}) // before anything is received
}

func (nodes) Join(ctx context.Context, _ *machinev1.JoinRequest) (*machinev1.JoinResponse, error) {
	return nil, rpcerr.BadToken("the token was used")
}

// bare is a service of ours whose method does not say which right it needs.
func bare() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "windlass.bare.v1.BareService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Do", Handler: func(srv any, ctx context.Context, dec func(any) error, ic grpc.UnaryServerInterceptor) (
				any, error,
			) {
				in := new(emptypb.Empty)
				if err := dec(in); err != nil {
					return nil, err
				}
				info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/windlass.bare.v1.BareService/Do"}
				return ic(ctx, in, info, func(context.Context, any) (any, error) { return new(emptypb.Empty), nil })
			}},
		},
	}
}

// guarded is a running server with everything that a test asks of it.
type guarded struct {
	t       *testing.T
	ca      *Authority
	address string
	policy  *Policy
	guard   atomic.Pointer[Guard] // of the calls that come
	log     *audit.Trail
	dir     string // of log
}

// recording begins new audit logs.
func (g *guarded) recording() {
	g.t.Helper()
	g.dir = g.t.TempDir()
	var err error
	if g.log, err = audit.Open(audit.Config{Dir: g.dir, Service: "eviction-controller"}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = g.log.Close() })
	g.guard.Store(&Guard{Service: "eviction-controller", Policy: g.policy, Audit: g.log})
}

// records ends the audit logs and returns what is in one of them.
func (g *guarded) records(name string) (records []audit.Record) {
	g.t.Helper()
	if err := g.log.Close(); err != nil {
		g.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil {
			g.t.Fatal(err)
		}
		if r.Event == "" {
			records = append(records, r)
		}
	}
	return records
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	ca := authority(t, time.Hour)
	request := serverRequest()
	request.IPs = []net.IP{net.IPv4(127, 0, 0, 1)}
	cfg, err := newPlace(t).issue(ca, request).files().ServerTLS(tls.VerifyClientCertIfGiven)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{t: t, ca: ca, policy: policy}
	g.recording()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
			error,
		) {
			return UnaryInterceptor(*g.guard.Load())(ctx, req, info, next)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			next grpc.StreamHandler,
		) error {
			return StreamInterceptor(*g.guard.Load())(srv, stream, info, next)
		}))
	nodev1.RegisterNodeServiceServer(server, nodes{})
	nodev1.RegisterNodeAgentServiceServer(server, nodes{})
	machinev1.RegisterJoinServiceServer(server, nodes{})
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	server.RegisterService(bare(), nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	g.address = listener.Addr().String()
	return g
}

// as connects with a certificate of that URI; an empty one means without any.
func (g *guarded) as(uri, cn string, groups ...string) *grpc.ClientConn {
	g.t.Helper()
	cfg := &tls.Config{RootCAs: g.ca.Pool()}
	if uri != "" || cn != "" {
		p := newPlace(g.t).issue(g.ca, Request{CommonName: cn, Organizations: groups, URI: uri, Client: true})
		cfg = clientTLS(g.t, p, "")
	}
	conn, err := grpc.NewClient(g.address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (g *guarded) service(name string) *grpc.ClientConn { return g.as(ServiceURI(name), name) }

func TestGuardedCalls(t *testing.T) {
	g := newGuarded(t)
	get := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		n, err := nodev1.NewNodeServiceClient(c).GetNode(ctx, &nodev1.GetNodeRequest{Name: "worker-1"})
		return n.GetKind(), err
	}
	create := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		n, err := nodev1.NewNodeServiceClient(c).CreateNode(ctx, &nodev1.CreateNodeRequest{
			Node: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "worker-2"}},
		})
		return n.GetKind(), err
	}
	del := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		_, err := nodev1.NewNodeServiceClient(c).DeleteNode(ctx, &nodev1.DeleteNodeRequest{
			Name: "worker-1", Preconditions: &metav1.Preconditions{ResourceVersion: "42"},
		})
		return "", err
	}
	patchStatus := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		_, err := nodev1.NewNodeServiceClient(c).PatchNode(ctx, &nodev1.PatchNodeRequest{
			Name: "worker-1", Subresource: "status",
		})
		return "", err
	}
	register := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		n, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(ctx, &nodev1.RegisterNodeRequest{})
		return n.GetKind(), err
	}
	join := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		_, err := machinev1.NewJoinServiceClient(c).Join(ctx, &machinev1.JoinRequest{})
		return "", err
	}
	unmarked := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		return "", c.Invoke(ctx, "/windlass.bare.v1.BareService/Do", new(emptypb.Empty), new(emptypb.Empty))
	}
	healthy := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		_, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return "", err
	}
	watch := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		s, err := nodev1.NewNodeServiceClient(c).WatchNodes(ctx, &nodev1.WatchNodesRequest{})
		if err != nil {
			return "", err
		}
		_, err = s.Recv()
		return "", err
	}
	heartbeat := func(ctx context.Context, c *grpc.ClientConn) (string, error) {
		s, err := nodev1.NewNodeAgentServiceClient(c).Heartbeat(ctx)
		if err != nil {
			return "", err
		}
		_, err = s.Recv()
		return "", err
	}
	api, gateway, anonymous := g.service("machine-api"), g.service("gateway"), g.as("", "")
	node := g.as(NodeURI("worker-1", "u-1"), "worker-1")
	admin := g.as(UserURI("root"), "root", GroupMasters)
	nameless := g.as("", "nameless")
	const apiUser = "system:windlass:machine-api"

	tests := []struct {
		name string
		conn *grpc.ClientConn
		sent []string // metadata
		call func(context.Context, *grpc.ClientConn) (string, error)
		code codes.Code
		user string // whom the handler sees
		want *audit.Record
	}{
		{"a service reads, and nothing is recorded", api, nil, get, codes.OK, apiUser, nil},
		{
			"a service creates, with the revision after", api, nil, create, codes.OK, apiUser,
			&audit.Record{
				User: apiUser, Verb: "create", Resource: "nodes", Name: "worker-2", ResourceVersionAfter: "43",
				Decision: audit.Allow, Code: "OK",
			},
		},
		{
			"a change that fails is recorded with the code that the caller sees", api, nil, del, codes.Internal, "",
			&audit.Record{
				User: apiUser, Verb: "delete", Resource: "nodes", Name: "worker-1", ResourceVersionBefore: "42",
				Decision: audit.Allow, Code: "Internal",
			},
		},
		{
			"a node may not delete", node, nil, del, codes.PermissionDenied, "",
			&audit.Record{
				User: "system:node:worker-1", Verb: "delete", Resource: "nodes", Name: "worker-1",
				ResourceVersionBefore: "42", Decision: audit.Deny, Code: "PermissionDenied",
			},
		},
		{
			"a node may not watch", node, nil, watch, codes.PermissionDenied, "",
			&audit.Record{
				User: "system:node:worker-1", Verb: "watch", Resource: "nodes", Decision: audit.Deny,
				Code: "PermissionDenied",
			},
		},
		{
			"who may patch an object may not therefore patch its status", api, nil, patchStatus, codes.PermissionDenied, "",
			&audit.Record{
				User: apiUser, Verb: "patch", Resource: "nodes/status", Name: "worker-1", Decision: audit.Deny,
				Code: "PermissionDenied",
			},
		},
		{"a service may watch", api, nil, watch, codes.OK, "", nil},
		{
			"a node registers where the method decides", node, nil, register, codes.OK, "system:node:worker-1",
			&audit.Record{
				User: "system:node:worker-1", Verb: "register", Resource: "nodes", Name: "registered",
				Detail: "with a test", ResourceVersionAfter: "43", Decision: audit.Allow, Code: "OK",
			},
		},
		{
			"a method's own refusal is recorded", api, nil, register, codes.PermissionDenied, "",
			&audit.Record{User: apiUser, Verb: "register", Resource: "nodes", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{"a stream whose method decides answers before it receives", node, nil, heartbeat, codes.OK, "", nil},
		{
			"a stream's own refusal is recorded", api, nil, heartbeat, codes.PermissionDenied, "",
			&audit.Record{User: apiUser, Verb: "heartbeat", Resource: "nodes", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"an anonymous caller may do nothing", anonymous, nil, get, codes.Unauthenticated, "",
			&audit.Record{Verb: "get", Resource: "nodes", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"an anonymous caller may not register", anonymous, nil, register, codes.Unauthenticated, "",
			&audit.Record{Verb: "register", Resource: "nodes", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"an anonymous caller may not open a stream", anonymous, nil, heartbeat, codes.Unauthenticated, "",
			&audit.Record{Verb: "heartbeat", Resource: "nodes", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"an anonymous caller may join, and a used token is recorded", anonymous, nil, join, codes.Unauthenticated, "",
			&audit.Record{
				Verb: "join", Group: "machine.openshift.io", Resource: "machines/join", Decision: audit.Deny,
				Code: "Unauthenticated",
			},
		},
		{
			"an anonymous caller may not ask for health", anonymous, nil, healthy, codes.Unauthenticated, "",
			&audit.Record{Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{"a certificate that names no caller may ask for health", nameless, nil, healthy, codes.OK, "", nil},
		{
			"a certificate that names no caller may do nothing else", nameless, nil, get, codes.Unauthenticated, "",
			&audit.Record{Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"a method of ours that names no right is closed to masters too", admin, nil, unmarked, codes.PermissionDenied, "",
			&audit.Record{User: "root", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"the gateway speaks for its callers", gateway,
			[]string{MetadataUser, "root", MetadataGroup, GroupMasters, MetadataRequestID, "r-1"},
			create, codes.OK, "root",
			&audit.Record{
				User: "root", Via: "system:windlass:gateway", RequestID: "r-1", Verb: "create", Resource: "nodes",
				Name: "worker-2", ResourceVersionAfter: "43", Decision: audit.Allow, Code: "OK",
			},
		},
		{
			"the gateway's caller has no more rights through it", gateway,
			[]string{MetadataUser, "bob", MetadataRequestID, "r-2"},
			get, codes.PermissionDenied, "",
			&audit.Record{
				User: "bob", Via: "system:windlass:gateway", RequestID: "r-2", Verb: "get", Resource: "nodes",
				Name: "worker-1", Decision: audit.Deny, Code: "PermissionDenied",
			},
		},
		{
			"a stranger at the gateway is a stranger here", gateway,
			[]string{MetadataRequestID, "r-3"},
			register, codes.Unauthenticated, "",
			&audit.Record{
				Via: "system:windlass:gateway", RequestID: "r-3", Verb: "register", Resource: "nodes",
				Decision: audit.Deny, Code: "Unauthenticated",
			},
		},
		{
			"a stranger at the gateway may join", gateway,
			[]string{MetadataRequestID, "r-4"},
			join, codes.Unauthenticated, "",
			&audit.Record{
				Via: "system:windlass:gateway", RequestID: "r-4", Verb: "join", Group: "machine.openshift.io",
				Resource: "machines/join", Decision: audit.Deny, Code: "Unauthenticated",
			},
		},
		{
			"the gateway names one user, not two", gateway,
			[]string{MetadataUser, "a", MetadataUser, "b", MetadataRequestID, "r-5"},
			get, codes.Unauthenticated, "",
			&audit.Record{Via: "system:windlass:gateway", RequestID: "r-5", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"groups without a user are refused", gateway,
			[]string{MetadataGroup, GroupMasters, MetadataRequestID, "r-6"},
			get, codes.Unauthenticated, "",
			&audit.Record{Via: "system:windlass:gateway", RequestID: "r-6", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"the gateway speaks for a node with the uid of its machine", gateway,
			[]string{
				MetadataUser, NodeUser("worker-1"), MetadataUID, "u-1", MetadataGroup, GroupNodes, MetadataRequestID,
				"r-7",
			},
			register, codes.OK, NodeUser("worker-1"),
			&audit.Record{
				User: NodeUser("worker-1"), Via: "system:windlass:gateway", RequestID: "r-7", Verb: "register",
				Resource: "nodes", Name: "registered", Detail: "with a test", ResourceVersionAfter: "43", Decision: audit.Allow,
				Code: "OK",
			},
		},
		{
			"a node without the uid of its machine is refused", gateway,
			[]string{MetadataUser, NodeUser("worker-1"), MetadataGroup, GroupNodes, MetadataRequestID, "r-8"},
			register, codes.PermissionDenied, "",
			&audit.Record{
				User: NodeUser("worker-1"), Via: "system:windlass:gateway", RequestID: "r-8", Decision: audit.Deny,
				Code: "PermissionDenied",
			},
		},
		{
			"the gateway names one uid, not two", gateway,
			[]string{
				MetadataUser, NodeUser("a"), MetadataUID, "u", MetadataUID, "v", MetadataGroup, GroupNodes,
				MetadataRequestID, "r-9",
			},
			register, codes.Unauthenticated, "",
			&audit.Record{Via: "system:windlass:gateway", RequestID: "r-9", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"a uid without a user is refused", gateway,
			[]string{MetadataUID, "u", MetadataRequestID, "r-10"},
			get, codes.Unauthenticated, "",
			&audit.Record{Via: "system:windlass:gateway", RequestID: "r-10", Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"the gateway's own calls have no rights", gateway, nil, get, codes.PermissionDenied, "",
			&audit.Record{
				User: "system:windlass:gateway", Verb: "get", Resource: "nodes", Name: "worker-1",
				Decision: audit.Deny, Code: "PermissionDenied",
			},
		},
		{"the gateway probes health", gateway, nil, healthy, codes.OK, "", nil},
		{
			"a forged user is refused, and the forger recorded", node,
			[]string{MetadataUser, "root", MetadataGroup, GroupMasters},
			get, codes.PermissionDenied, "",
			&audit.Record{User: "system:node:worker-1", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"a forged group is refused", api,
			[]string{MetadataGroup, GroupMasters},
			get, codes.PermissionDenied, "",
			&audit.Record{User: apiUser, Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"a forged address is refused", node,
			[]string{MetadataSource, "192.0.2.1:1"},
			register, codes.PermissionDenied, "",
			&audit.Record{User: "system:node:worker-1", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"a forged uid is refused, even beside one's own name", node,
			[]string{MetadataUID, "u-2"},
			register, codes.PermissionDenied, "",
			&audit.Record{User: "system:node:worker-1", Decision: audit.Deny, Code: "PermissionDenied"},
		},
		{
			"a user forged by an anonymous caller is refused", anonymous,
			[]string{MetadataUser, "root"},
			get, codes.Unauthenticated, "",
			&audit.Record{Decision: audit.Deny, Code: "Unauthenticated"},
		},
		{
			"a forged user on a stream is refused", node,
			[]string{MetadataUser, "root"},
			watch, codes.PermissionDenied, "",
			&audit.Record{User: "system:node:worker-1", Decision: audit.Deny, Code: "PermissionDenied"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g.recording()
			user, err := tt.call(metadata.AppendToOutgoingContext(t.Context(), tt.sent...), tt.conn)
			if status.Code(err) != tt.code || user != tt.user {
				t.Errorf("answer %q, %v; want %q, %v", user, err, tt.user, tt.code)
			}
			if err != nil && rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_UNSPECIFIED {
				t.Errorf("no reason in %v", err)
			}
			refused, changed := g.records(audit.RefusalsFile), g.records(audit.ChangesFile)
			if tt.want == nil {
				if len(refused)+len(changed) != 0 {
					t.Errorf("recorded %+v, %+v", changed, refused)
				}
				return
			}
			if tt.want.Decision == audit.Allow && len(changed) == 2 && changed[0].Stage == audit.Requested &&
				changed[1].Stage == audit.Completed && changed[0].RequestID == changed[1].RequestID {
				refused, changed = changed[1:], nil
				tt.want.Stage = audit.Completed
			}
			if len(refused) != 1 || len(changed) != 0 {
				t.Fatalf("%d refusals and %d changes, want one refusal or the two records of a change: %+v, %+v", len(refused),
					len(changed), refused, changed)
			}
			got := refused[0]
			if got.RequestID == "" || got.Source == "" || got.Reason == "" && got.Decision == audit.Deny ||
				got.Service != "eviction-controller" || got.Time.IsZero() {
				t.Errorf("the record lacks something: %+v", got)
			}
			ignore := []string{"Time", "Source", "Service", "Method", "Reason", "LatencyMs", "Groups", "Seq", "Prev"}
			if tt.want.RequestID == "" {
				ignore = append(ignore, "RequestID")
			}
			if diff := cmp.Diff(*tt.want, got, cmpopts.IgnoreFields(audit.Record{}, ignore...)); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNothingChangesWhileTheAuditLogCannotBeWritten(t *testing.T) {
	g := newGuarded(t)
	path := filepath.Join(g.dir, audit.ChangesFile)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	admin := nodev1.NewNodeServiceClient(g.as(UserURI("root"), "root", GroupMasters))
	if _, err := admin.CreateNode(t.Context(), &nodev1.CreateNodeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("CreateNode of an administrator = %v, want UNAVAILABLE", err)
	}
	if _, err := admin.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "n"}); err != nil {
		t.Errorf("GetNode = %v, want a node: reading needs no record", err)
	}
	if _, err := nodev1.NewNodeServiceClient(g.service("machine-api")).CreateNode(t.Context(),
		&nodev1.CreateNodeRequest{}); err != nil {
		t.Errorf("CreateNode of a service = %v, want that it goes on", err)
	}
	agent := nodev1.NewNodeAgentServiceClient(g.as(NodeURI("worker-1", "u-1"), "worker-1"))
	if _, err := agent.RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{}); err != nil {
		t.Errorf("RegisterNode of an agent = %v, want that it goes on", err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateNode(t.Context(), &nodev1.CreateNodeRequest{}); err != nil {
		t.Errorf("CreateNode = %v after the file is back", err)
	}
}

// TestTheGatewaysClientIsTheSource holds the record to the address that the gateway names.
func TestTheGatewaysClientIsTheSource(t *testing.T) {
	g := newGuarded(t)
	gateway := nodev1.NewNodeServiceClient(g.service("gateway"))
	ctx := metadata.AppendToOutgoingContext(t.Context(), MetadataUser, "root", MetadataGroup, GroupMasters,
		MetadataRequestID, "r-1", MetadataSource, "192.0.2.7:1234")
	if _, err := gateway.CreateNode(ctx, &nodev1.CreateNodeRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range g.records(audit.ChangesFile) {
		if r.Source != "192.0.2.7:1234" {
			t.Errorf("source %q", r.Source)
		}
	}
}

// silent is a stream that never brings a message.
type silent struct {
	grpc.ServerStream
	ctx context.Context
}

func (s silent) Context() context.Context { return s.ctx }
func (s silent) RecvMsg(any) error        { return io.EOF }
func (s silent) SendMsg(any) error        { return nil }

func TestAStreamAnswersNothingBeforeItsRightIsChecked(t *testing.T) {
	policy, err := LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	c := &call{watchman: newWatchman(Guard{Policy: policy}), caller: service("machine-api"), access: &metav1.Access{
		Verb: "watch", Resource: "nodes",
	}}
	s := &guardedStream{ServerStream: silent{ctx: t.Context()}, ctx: t.Context(), call: c}
	if err := s.SendMsg(nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("SendMsg = %v before the first message", err)
	}
	if err := s.decide(&nodev1.WatchNodesRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(nil); err != nil {
		t.Errorf("SendMsg = %v after it", err)
	}
}

// TestARightInANamespaceIsNotForAnObjectOfAnotherThatTheRequestCarries calls as a user who may plan in one namespace,
// and there for one name.
func TestARightInANamespaceIsNotForAnObjectOfAnotherThatTheRequestCarries(t *testing.T) {
	policy := policyOf(t, string(DefaultPolicy()))
	policy.SetStored(Stored{
		ClusterRoles: []*storedv1.ClusterRole{
			{Metadata: storedMeta("", "planner"), Rules: []*storedv1.PolicyRule{{
				Verbs: []string{"plan"}, ApiGroups: []string{"apps"}, Resources: []string{"replicasets"},
			}}},
			{Metadata: storedMeta("", "one"), Rules: []*storedv1.PolicyRule{{
				Verbs: []string{"plan"}, ApiGroups: []string{"apps"}, Resources: []string{"replicasets"}, ResourceNames: []string{
					"a",
				},
			}}},
		},
		ClusterRoleBindings: []*storedv1.ClusterRoleBinding{
			{Metadata: storedMeta("", "p"), RoleRef: storedRef("ClusterRole", "planner"), Subjects: storedUser("all")},
		},
		RoleBindings: []*storedv1.RoleBinding{
			{Metadata: storedMeta("dev", "p"), RoleRef: storedRef("ClusterRole", "planner"), Subjects: storedUser("dora")},
			{Metadata: storedMeta("dev", "o"), RoleRef: storedRef("ClusterRole", "one"), Subjects: storedUser("olga")},
		},
	})
	for _, tt := range []struct {
		name, user, namespace, of   string
		carriedNamespace, carriedOf string
		want                        codes.Code
	}{
		{"an object of the namespace", "dora", "dev", "", "dev", "web", codes.OK},
		{"an object that names no namespace", "dora", "dev", "", "", "web", codes.OK},
		{"an object of another namespace", "dora", "dev", "", "prod", "web", codes.PermissionDenied},
		{"an object of another namespace, for a right everywhere", "all", "dev", "", "prod", "web", codes.OK},
		{"the one name", "olga", "dev", "a", "dev", "a", codes.OK},
		{"another name", "olga", "dev", "a", "dev", "b", codes.PermissionDenied},
	} {
		c := &call{
			watchman: newWatchman(Guard{Policy: policy}), caller: person(tt.user),
			access: &metav1.Access{Verb: "plan", Group: "apps", Resource: "replicasets"},
		}
		err := c.authorize(&schedulingv1.PlanReplicaSetRequest{
			Namespace: tt.namespace, Name: tt.of,
			ReplicaSet: &schedulingv1.ReplicaSet{Metadata: storedMeta(tt.carriedNamespace, tt.carriedOf)},
		})
		if status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
