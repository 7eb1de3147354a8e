package kinds_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/etcd-guardian/kinds"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// policy lets the user operator do all to snapshots and schedules, and the user keeper also choose who can open the
// keys in them.
const policy = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: snapshots}
rules: [{apiGroups: [windlass.dev], resources: [snapshots, snapshotschedules], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: keys}
rules: [{apiGroups: [windlass.dev], resources: [snapshots/keys, snapshotschedules/keys], verbs: [update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: snapshots}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: snapshots}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: operator}, {apiGroup: rbac.authorization.k8s.io, kind: User, name: keeper}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: keys}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: keys}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: keeper}]
`

func tables(t *testing.T, hasKeys bool) *kinds.Tables {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	rights, err := identity.LoadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	out := kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, hasKeys, rights, slog.New(slog.DiscardHandler))
	for _, run := range []func(context.Context) error{out.Snapshots.Run, out.Schedules.Run} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{out.Snapshots.WaitSynced, out.Schedules.WaitSynced} {
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func as(t *testing.T, user string) context.Context {
	t.Helper()
	return identity.WithCaller(t.Context(), identity.Caller{User: user})
}

func TestWhoChoosesWhoOpensTheKeys(t *testing.T) {
	_, mine, err := hostbundle.NewRecoveryKey()
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := hostbundle.NewRecoveryKey()
	if err != nil {
		t.Fatal(err)
	}
	out := tables(t, true)
	snapshot := func(name string, to ...string) *etcdv1.Snapshot {
		return &etcdv1.Snapshot{
			Metadata: &metav1.ObjectMeta{Name: name}, Spec: &etcdv1.SnapshotSpec{KeyRecipients: to},
		}
	}
	for _, c := range []struct {
		user string
		s    *etcdv1.Snapshot
		want codes.Code
	}{
		{"operator", snapshot("without"), codes.OK},
		{"operator", snapshot("own", mine), codes.PermissionDenied},
		{"keeper", snapshot("kept", mine), codes.OK},
		{"keeper", snapshot("none", "age1"), codes.InvalidArgument},
	} {
		if _, err := out.Snapshots.Create(as(t, c.user), c.s); status.Code(err) != c.want {
			t.Errorf("%s creates snapshot %s: %v, want %s", c.user, c.s.GetMetadata().GetName(), err, c.want)
		}
	}
	s, err := out.Schedules.Create(as(t, "keeper"), &etcdv1.SnapshotSchedule{
		Metadata: &metav1.ObjectMeta{Name: "daily"},
		Spec:     &etcdv1.SnapshotScheduleSpec{Schedule: "@daily", KeyRecipients: []string{mine}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.Suspend = true
	if s, err = out.Schedules.Update(as(t, "operator"), s); err != nil {
		t.Errorf("the schedule is suspended by one who keeps the recipients: %v", err)
	}
	s.Spec.KeyRecipients = []string{mine, other}
	if _, err := out.Schedules.Update(as(t, "operator"), s); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a recipient is added: %v", err)
	}
	s.Spec.KeyRecipients = nil // that gives no one a key
	if _, err := out.Schedules.Update(as(t, "operator"), s); err != nil {
		t.Errorf("the recipients are removed: %v", err)
	}
}

func TestWithoutHostsNoKeysAreKept(t *testing.T) {
	_, mine, err := hostbundle.NewRecoveryKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = tables(t, false).Snapshots.Create(as(t, "keeper"), &etcdv1.Snapshot{
		Metadata: &metav1.ObjectMeta{Name: "s"}, Spec: &etcdv1.SnapshotSpec{KeyRecipients: []string{mine}},
	})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v, want %s", err, codes.InvalidArgument)
	}
}
