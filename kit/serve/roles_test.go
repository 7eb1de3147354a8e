package serve_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// The owner of roles with one role and no Role or RoleBinding; its ClusterRoleBindings come by a channel.
type (
	clusterRoles struct {
		rbacv1.UnimplementedClusterRoleServiceServer
	}
	roles struct {
		rbacv1.UnimplementedRoleServiceServer
	}
	roleBindings struct {
		rbacv1.UnimplementedRoleBindingServiceServer
	}
	clusterBindings struct {
		rbacv1.UnimplementedClusterRoleBindingServiceServer
		events chan *rbacv1.WatchClusterRoleBindingsResponse
	}
)

func (clusterRoles) WatchClusterRoles(_ *rbacv1.WatchClusterRolesRequest,
	s grpc.ServerStreamingServer[rbacv1.WatchClusterRolesResponse],
) error {
	reader := &rbacv1.ClusterRole{
		Metadata: &metav1.ObjectMeta{Name: "machine-reader", ResourceVersion: "1"}, Rules: []*rbacv1.PolicyRule{{
			Verbs: []string{"get"}, ApiGroups: []string{"machine.openshift.io"}, Resources: []string{"machines"},
		}},
	}
	for _, m := range []*rbacv1.WatchClusterRolesResponse{
		{ResourceVersion: "1", Events: []*rbacv1.WatchClusterRolesResponse_Event{{Type: "ADDED", Object: reader}}},
		{ResourceVersion: "1", Bookmark: true},
	} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

func (roles) WatchRoles(_ *rbacv1.WatchRolesRequest, s grpc.ServerStreamingServer[rbacv1.WatchRolesResponse]) error {
	err := s.Send(&rbacv1.WatchRolesResponse{ResourceVersion: "1", Bookmark: true})
	<-s.Context().Done()
	return err
}

func (roleBindings) WatchRoleBindings(_ *rbacv1.WatchRoleBindingsRequest,
	s grpc.ServerStreamingServer[rbacv1.WatchRoleBindingsResponse],
) error {
	err := s.Send(&rbacv1.WatchRoleBindingsResponse{ResourceVersion: "1", Bookmark: true})
	<-s.Context().Done()
	return err
}

func (b clusterBindings) WatchClusterRoleBindings(_ *rbacv1.WatchClusterRoleBindingsRequest,
	s grpc.ServerStreamingServer[rbacv1.WatchClusterRoleBindingsResponse],
) error {
	for {
		select {
		case <-s.Context().Done():
			return nil
		case m := <-b.events:
			if err := s.Send(m); err != nil {
				return err
			}
		}
	}
}

// TestStoredRolesAreInForceOnceAllAreRead has the policy file alone in force while scheduler is away, and keeps the
// last roles when it goes away again.
func TestStoredRolesAreInForceOnceAllAreRead(t *testing.T) {
	ground := servetest.New(t)
	owner := ground.Process(serve.Config{Name: "scheduler"})
	bindings := clusterBindings{events: make(chan *rbacv1.WatchClusterRoleBindingsResponse, 1)}
	rbacv1.RegisterClusterRoleServiceServer(owner.GRPC, clusterRoles{})
	rbacv1.RegisterRoleServiceServer(owner.GRPC, roles{})
	rbacv1.RegisterRoleBindingServiceServer(owner.GRPC, roleBindings{})
	rbacv1.RegisterClusterRoleBindingServiceServer(owner.GRPC, bindings)

	process := ground.Process(serve.Config{
		Name: "machine-api", Dir: t.TempDir(),
		TLSDir: filepath.Dir(ground.Files(servetest.Service("machine-api")).Cert),
		Peers:  map[string]string{"scheduler": owner.Address()},
	})
	service := &machines{watching: make(chan struct{})}
	machinev1.RegisterMachineServiceServer(process.GRPC, service)
	servetest.Run(t, process)
	get := func(user string, groups ...string) error {
		client := machinev1.NewMachineServiceClient(ground.Dial(process.Address(), servetest.User(user, groups...)))
		_, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "default", Name: "m"})
		return err
	}
	const unread = "the roles that are stored in etcd are not read yet"
	if err := get("dora"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), unread) {
		t.Errorf("without scheduler dora gets %v, want UNAVAILABLE and %q: she may have the right", err, unread)
	}
	if err := get("vera", "windlass:viewers"); err != nil {
		t.Errorf("without scheduler a viewer gets %v", err)
	}

	stopOwner := servetest.Run(t, owner)
	event := func(kind, revision string) []*rbacv1.WatchClusterRoleBindingsResponse_Event {
		return []*rbacv1.WatchClusterRoleBindingsResponse_Event{{Type: kind, Object: &rbacv1.ClusterRoleBinding{
			Metadata: &metav1.ObjectMeta{Name: "dora", ResourceVersion: revision},
			RoleRef:  &rbacv1.RoleRef{Kind: "ClusterRole", Name: "machine-reader"},
			Subjects: []*rbacv1.Subject{{Kind: "User", Name: "dora"}},
		}}}
	}
	bindings.events <- &rbacv1.WatchClusterRoleBindingsResponse{ResourceVersion: "1", Events: event("ADDED", "1")}
	bindings.events <- &rbacv1.WatchClusterRoleBindingsResponse{ResourceVersion: "1", Bookmark: true}
	servetest.Await(t, func() string {
		if err := get("dora"); err != nil {
			return "the right of dora's role, not " + status.Convert(err).Message()
		}
		return ""
	})
	bindings.events <- &rbacv1.WatchClusterRoleBindingsResponse{ResourceVersion: "2", Events: event("DELETED", "2")}
	servetest.Await(t, func() string {
		if get("dora") == nil {
			return "the end of dora's right"
		}
		return ""
	})
	bindings.events <- &rbacv1.WatchClusterRoleBindingsResponse{ResourceVersion: "3", Events: event("ADDED", "3")}
	servetest.Await(t, func() string {
		if err := get("dora"); err != nil {
			return "the right of dora's role again"
		}
		return ""
	})
	stopOwner()
	if err := get("dora"); err != nil {
		t.Errorf("after scheduler went away dora gets %v", err)
	}
}

// TestARevocationWaitsForABoundedTime rests long enough that most of the time is left for other work, and not so long
// that a right outlives its revocation on a slow host.
func TestARevocationWaitsForABoundedTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 20 * time.Millisecond, 50 * time.Millisecond: time.Second, time.Minute: 2 * time.Second,
	} {
		if got := serve.RestAfter(took); got != want {
			t.Errorf("after %v it rests %v, want %v", took, got, want)
		}
	}
}
