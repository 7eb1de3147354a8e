package server

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// newTables returns tables that run over an empty store.
func newTables(t *testing.T) *kinds.Tables {
	t.Helper()
	tables := kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, nil, slog.New(slog.DiscardHandler))
	for _, run := range []func(context.Context) error{tables.Nodes.Run, tables.Drains.Run} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{tables.Nodes.WaitSynced, tables.Drains.WaitSynced} {
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return tables
}

// permit is etcd-guardian's: it is granted to every caller, and then a change happens.
type permit struct {
	held, asked bool
	then        func()
}

func (p *permit) Acquire(context.Context, *metav1.ObjectReference, string) (bool, error) {
	p.held, p.asked = true, true
	p.then()
	return true, nil
}

func (p *permit) Release(context.Context, *metav1.ObjectReference) error {
	p.held = false
	return nil
}

func TestARebootThatDoesNotComeAbout(t *testing.T) {
	reboots := func(id string) func(*nodev1.Node) {
		return func(n *nodev1.Node) { n.Status.NodeInfo.BootId = id }
	}
	asked := func(of string) func(*nodev1.Node) { return func(n *nodev1.Node) { plan.SetReboot(n, of) } }
	for _, tc := range []struct {
		name            string
		before          func(*nodev1.Node) // the reboot is asked for
		during          func(*nodev1.Node) // while the permit is asked for
		drained         bool
		asks, keeps, ok bool
	}{
		{name: "gives the permit back", during: reboots("boot-2"), asks: true},
		{
			name: "leaves the permit to a drain that uses it", during: reboots("boot-2"), drained: true, asks: true,
			keeps: true,
		},
		{name: "waits for the end of another one, which gives the permit back", before: asked("boot-0")},
		{name: "also of one that was requested in the meantime", during: asked("boot-0"), asks: true, keeps: true},
		{name: "unless it is the very same", during: asked("boot-1"), asks: true, keeps: true, ok: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tables, ctx := newTables(t), t.Context()
			change := func(f func(*nodev1.Node)) {
				if f == nil {
					return
				}
				if _, err := tables.Nodes.Modify(ctx, object.Key{Name: "a"}, func(n *nodev1.Node) error {
					f(n)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
			if _, err := tables.Nodes.Create(ctx, &nodev1.Node{
				Metadata: &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
				Status: &nodev1.NodeStatus{
					NodeInfo: &nodev1.NodeSystemInfo{BootId: "boot-1"}, Conditions: []*nodev1.NodeCondition{
						{Type: plan.Ready, Status: "True"},
					},
				},
			}); err != nil {
				t.Fatal(err)
			}
			change(tc.before)
			if tc.drained {
				d, err := tables.Drains.Create(ctx, &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "d"}, Spec: &nodev1.DrainSpec{
					NodeName: "a",
				}})
				if err != nil {
					t.Fatal(err)
				}
				d.Status = &nodev1.DrainStatus{Phase: proto.String(plan.Draining), Conditions: []*metav1.Condition{
					{Type: plan.PermitHeld, Status: "True"},
				}}
				if _, err := tables.Drains.UpdateStatus(ctx, d); err != nil {
					t.Fatal(err)
				}
			}
			guardian := &permit{then: func() { change(tc.during) }}
			_, err := NewNode(tables, nil, guardian).RebootNode(t.Context(), &nodev1.RebootNodeRequest{Name: "a"})
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Aborted}[tc.ok]; status.Code(err) != want {
				t.Errorf("RebootNode: %v, want %v", err, want)
			}
			if guardian.asked != tc.asks || guardian.held != tc.keeps {
				t.Errorf("the permit was asked for: %t, it is held: %t", guardian.asked, guardian.held)
			}
		})
	}
}
