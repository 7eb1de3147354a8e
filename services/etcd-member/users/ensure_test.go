package users_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/windlass-dev/windlass/services/etcd-member/users"
)

// server is an etcd server in this process; root acts as root once authentication is on.
type server struct {
	clientv3.Auth
	etcd *embed.Etcd
}

func startServer(t *testing.T) server {
	t.Helper()
	dir, err := os.MkdirTemp("", "users") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "unix", Path: dir + "/client"}, url.URL{Scheme: "unix", Path: dir + "/peer"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.Name = "users"
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	c := v3client.New(e.Server)
	t.Cleanup(func() { c.Close() })
	return server{c, e}
}

func (s server) root(t *testing.T) context.Context {
	return s.etcd.Server.AuthStore().WithRoot(t.Context())
}

// reset makes the server as new.
func (s server) reset(t *testing.T) {
	t.Helper()
	if _, err := s.AuthDisable(s.root(t)); err != nil {
		t.Fatal(err)
	}
	list, err := s.UserList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range list.Users {
		if _, err := s.UserDelete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	roles, err := s.RoleList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roles.Roles {
		if _, err := s.RoleDelete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// describe returns all that Ensure sets up.
func (s server) describe(t *testing.T) map[string][]string {
	t.Helper()
	ctx := s.root(t)
	status, err := s.AuthStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{"on": {fmt.Sprint(status.Enabled)}}
	list, err := s.UserList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range list.Users {
		got, err := s.UserGet(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		all["user "+u] = got.Roles
		role, err := s.RoleGet(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range role.Perm {
			all["role "+u] = append(all["role "+u], fmt.Sprintf("%s %s-%s", p.PermType, p.Key, p.RangeEnd))
		}
		slices.Sort(all["role "+u])
	}
	return all
}

var errKilled = errors.New("killed")

// killed is a client whose process dies at a call that changes something: before it reaches the server or after it.
type killed struct {
	clientv3.Auth
	left  *int // changes until then
	after bool
}

func die[T any](k killed, call func() (T, error)) (T, error) {
	*k.left--
	var none T
	switch {
	case *k.left < 0 && !k.after, *k.left < -1:
		return none, errKilled
	case *k.left < 0:
		if resp, err := call(); err != nil {
			return resp, err
		}
		return none, errKilled
	default:
		return call()
	}
}

func (k killed) AuthEnable(ctx context.Context) (*clientv3.AuthEnableResponse, error) {
	return die(k, func() (*clientv3.AuthEnableResponse, error) { return k.Auth.AuthEnable(ctx) })
}

func (k killed) UserAddWithOptions(ctx context.Context, name, pw string, o *clientv3.UserAddOptions) (
	*clientv3.AuthUserAddResponse, error,
) {
	return die(k, func() (*clientv3.AuthUserAddResponse, error) { return k.Auth.UserAddWithOptions(ctx, name, pw, o) })
}

func (k killed) UserGrantRole(ctx context.Context, user, role string) (*clientv3.AuthUserGrantRoleResponse, error) {
	return die(k, func() (*clientv3.AuthUserGrantRoleResponse, error) { return k.Auth.UserGrantRole(ctx, user, role) })
}

func (k killed) RoleAdd(ctx context.Context, name string) (*clientv3.AuthRoleAddResponse, error) {
	return die(k, func() (*clientv3.AuthRoleAddResponse, error) { return k.Auth.RoleAdd(ctx, name) })
}

func (k killed) RoleGrantPermission(ctx context.Context, name, key, end string, p clientv3.PermissionType) (
	*clientv3.AuthRoleGrantPermissionResponse, error,
) {
	return die(k, func() (*clientv3.AuthRoleGrantPermissionResponse, error) {
		return k.Auth.RoleGrantPermission(ctx, name, key, end, p)
	})
}

func twoUsers() []users.User {
	return []users.User{
		{Name: "api", Prefixes: []users.Grant{
			{Prefix: "/api/", Permission: users.ReadWrite},
			{Key: "/elections/api", Permission: users.ReadWrite},
		}},
		{Name: "gateway", Prefixes: []users.Grant{{Prefix: "/elections/", Permission: users.Read}}},
	}
}

func wantTwoUsers() map[string][]string {
	return map[string][]string{
		"on": {"true"}, "user root": {"root"}, "role root": {"READWRITE -\x00"},
		"user api": {"api"}, "role api": {"READWRITE /api/-/api0", "READWRITE /elections/api-"},
		"user gateway": {"gateway"}, "role gateway": {"READ /elections/-/elections0"},
	}
}

func TestSetUpKilledAtAnyStepCompletesOnTheNextRun(t *testing.T) {
	s := startServer(t)
	changes := 0
	for _, after := range []bool{false, true} {
		for n := 0; ; n++ {
			left := n
			err := users.Ensure(s.root(t), killed{s, &left, after}, twoUsers())
			if err == nil {
				changes = n
				s.reset(t)
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatalf("killed at change %d: %v", n, err)
			}
			if err := users.Ensure(s.root(t), s, twoUsers()); err != nil {
				t.Fatalf("run again after a kill at change %d, after it %v: %v", n, after, err)
			}
			if diff := cmp.Diff(wantTwoUsers(), s.describe(t)); diff != "" {
				t.Fatalf("killed at change %d, after it %v (-want +got):\n%s", n, after, diff)
			}
			s.reset(t)
		}
	}
	if changes != 13 { // three roles, three users, three grants, three permissions, and on
		t.Errorf("%d changes in all, want 13", changes)
	}
}

func TestEnsureChangesOnlyWhatIsMissing(t *testing.T) {
	s := startServer(t)
	if err := users.Ensure(s.root(t), s, twoUsers()); err != nil {
		t.Fatal(err)
	}
	none := 0
	if err := users.Ensure(s.root(t), killed{s, &none, false}, twoUsers()); err != nil {
		t.Errorf("the same list again: %v, want no change", err)
	}

	more := twoUsers()
	more[1].Prefixes[0].Permission = users.ReadWrite
	more = append(more,
		users.User{Name: "broker", Prefixes: []users.Grant{{Prefix: "/broker/", Permission: users.ReadWrite}}})
	if err := users.Ensure(s.root(t), s, more[1:]); err != nil {
		t.Fatal(err)
	}
	want := wantTwoUsers()
	want["role gateway"] = []string{"READWRITE /elections/-/elections0"}
	want["user broker"], want["role broker"] = []string{"broker"}, []string{"READWRITE /broker/-/broker0"}
	if diff := cmp.Diff(want, s.describe(t)); diff != "" {
		t.Errorf("after a longer list without the first user (-want +got):\n%s", diff)
	}
}
