package etcdtest

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Users turns the authentication of an etcd on, which must be the test's own, and returns a client of root and one of a
// user, whose role "user" may read and write what begins with prefix.
func Users(t testing.TB, m *Members, prefix string) (root, user *clientv3.Client) {
	t.Helper()
	const secret = "secret"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	root = m.Client(t)
	_, err := root.UserAdd(ctx, "root", secret)
	must(err)
	_, err = root.UserGrantRole(ctx, "root", "root")
	must(err)
	_, err = root.UserAdd(ctx, "user", secret)
	must(err)
	_, err = root.RoleAdd(ctx, "user")
	must(err)
	_, err = root.RoleGrantPermission(ctx, "user", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite))
	must(err)
	_, err = root.UserGrantRole(ctx, "user", "user")
	must(err)
	_, err = root.AuthEnable(ctx)
	must(err)
	as := func(name string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: m.Endpoints(), Username: name, Password: secret, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		})
		must(err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	return as("root"), as("user")
}
