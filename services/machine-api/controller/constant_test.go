package controller

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// fleet returns controllers of n running machines of one set, each with its node.
func fleet(t testing.TB, n int) (*Controller, *resource.Cache[*nodev1.Node]) {
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	tables := kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, policy, quiet())
	nodes, drains := resource.NewCache[*nodev1.Node](), resource.NewCache[*nodev1.Drain]()
	conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := New(Config{
		Tables: tables, Providers: provider.New(nil, nil, quiet()), Nodes: nodes, Drains: drains, Eviction: conn,
		Events: noEvents{}, Log: quiet(),
	})
	var machines []*machinev1.Machine
	var all []*nodev1.Node
	for i := range n {
		m, node := running(i)
		machines, all = append(machines, m), append(all, node)
	}
	tables.Machines.Replace(machines, 1)
	nodes.Replace(all, 1)
	drains.Replace(nil, 1)
	return c, nodes
}

// running returns the machine of a number with its node.
func running(i int) (*machinev1.Machine, *nodev1.Node) {
	name := fmt.Sprintf("worker-%05d", i)
	node := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: name, Uid: "node-" + name, ResourceVersion: "1",
			Annotations: map[string]string{nodeid.MachineUID: "uid-" + name},
		},
		Spec: &nodev1.NodeSpec{ProviderId: "test://c/" + name},
		Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{
			{Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(time.Unix(0, 0))},
		}},
	}
	return &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Namespace: "openshift-machine-api", Name: name, Uid: "uid-" + name, ResourceVersion: "1",
			OwnerReferences: []*metav1.OwnerReference{
				{Kind: "MachineSet", Name: "workers", Uid: "uid-workers", Controller: proto.Bool(true)},
			},
		},
		Spec: &machinev1.MachineSpec{
			ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}, ProviderId: node.Spec.ProviderId,
		},
		Status: &machinev1.MachineStatus{
			Phase: proto.String(plan.PhaseRunning), NodeRef: object.Reference(node),
			Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}},
		},
	}, node
}

// The nodes of workers, of which there are thousands, do not have the control plane decided again.
func TestANodeConcernsTheControlPlaneWhileItIsOneOfIts(t *testing.T) {
	_, worker := running(1)
	master := proto.CloneOf(worker)
	master.Metadata.Labels = map[string]string{"node-role.kubernetes.io/master": ""}
	for name, test := range map[string]struct {
		ch   resource.Change[*nodev1.Node]
		want bool
	}{
		"a new worker":     {resource.Change[*nodev1.Node]{Object: worker}, false},
		"a changed worker": {resource.Change[*nodev1.Node]{Object: worker, Previous: worker, Existed: true}, false},
		"a new master":     {resource.Change[*nodev1.Node]{Object: master}, true},
		"a deleted master": {resource.Change[*nodev1.Node]{
			Object: master, Previous: master, Existed: true,
			Deleted: true,
		}, true},
		"one that becomes one": {resource.Change[*nodev1.Node]{Object: master, Previous: worker, Existed: true}, true},
		"one that was one":     {resource.Change[*nodev1.Node]{Object: worker, Previous: master, Existed: true}, true},
	} {
		if got := ofControlPlane(test.ch); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// BenchmarkNodeChange is the work of one changed node by the number of machines: on the goroutine of the informer
// ("informer"), for a machine that has its node ("linked"), for one whose node has not joined ("unlinked"), and for the
// comparison of one instance with what other machines have ("instance").
func BenchmarkNodeChange(b *testing.B) {
	for _, n := range []int{500, 1000, 5000} {
		c, nodes := fleet(b, n)
		m, node := running(n / 2)
		b.Run(fmt.Sprintf("informer/%d", n), func(b *testing.B) {
			for b.Loop() {
				nodes.Step(nodes.Revision()+1, []resource.Change[*nodev1.Node]{
					{Key: object.KeyOf(node), Object: node, Previous: node, Existed: true},
				})
			}
		})
		b.Run(fmt.Sprintf("linked/%d", n), func(b *testing.B) {
			for b.Loop() {
				if c.nodeOf(m, nil) == nil {
					b.Fatal("no node")
				}
			}
		})
		lone, _ := running(n)
		b.Run(fmt.Sprintf("unlinked/%d", n), func(b *testing.B) {
			for b.Loop() {
				if c.nodeOf(lone, nil) != nil {
					b.Fatal("it has a node")
				}
			}
		})
		i := &providerv1.Instance{
			ProviderId: m.GetSpec().GetProviderId(), MachineUid: m.GetMetadata().GetUid(),
			Addresses: m.GetStatus().GetAddresses(),
		}
		b.Run(fmt.Sprintf("instance/%d", n), func(b *testing.B) {
			for b.Loop() {
				v := plan.MachineView{Machine: m, Instance: i}
				if c.doubtInstance(&v); v.InstanceErr != "" {
					b.Fatal(v.InstanceErr)
				}
			}
		})
	}
}

// unlisted is a copy of the nodes that refuses to be read as a whole.
type unlisted struct {
	*resource.Cache[*nodev1.Node]
	t *testing.T
}

func (u unlisted) Objects() iter.Seq[*nodev1.Node] {
	u.t.Error("all nodes were read")
	return u.Cache.Objects()
}

func TestTheNodeOfAMachineIsFoundWithoutReadingAllNodes(t *testing.T) {
	c, nodes := fleet(t, 3)
	c.Nodes = unlisted{nodes, t}
	m, node := running(1)
	lone, _ := running(9)
	for name, tt := range map[string]struct {
		machine *machinev1.Machine
		want    *nodev1.Node
	}{
		"of its reference": {m, node},
		"of its uid":       {&machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "x", Uid: m.Metadata.Uid}}, node},
		"of none":          {lone, nil},
	} {
		if got := c.nodeOf(tt.machine, nil); !proto.Equal(got, tt.want) {
			t.Errorf("the node %s is %v, want %v", name, got, tt.want)
		}
	}
	node.Metadata.Annotations = nil
	nodes.Step(2, []resource.Change[*nodev1.Node]{{Key: object.KeyOf(node), Object: node, Previous: node, Existed: true}})
	m.Metadata.Name, m.Status.NodeRef = "x", nil
	if got := c.nodeOf(m, nil); !proto.Equal(got, node) {
		t.Errorf("the node of its instance is %v", got)
	}
}

func TestAnInstanceIsComparedWithTheMachinesThatHaveItsAddress(t *testing.T) {
	c, _ := fleet(t, 3)
	taken, _ := running(1)
	m, _ := running(9)
	v := plan.MachineView{Machine: m, Instance: &providerv1.Instance{
		ProviderId: m.GetSpec().GetProviderId(), MachineUid: m.GetMetadata().GetUid(),
		Addresses: []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: "::ffff:" + taken.GetStatus().GetAddresses()[0].GetAddress()},
		},
	}}
	if c.doubtInstance(&v); !strings.Contains(v.InstanceErr, "is that of machine") || v.Instance != nil {
		t.Errorf("instance %v, error %q: want the address refused", v.Instance, v.InstanceErr)
	}
}

func TestASetIsPlannedWithoutReadingOtherSetsMachinesAndNodes(t *testing.T) {
	c, nodes := fleet(t, 3)
	c.Nodes = unlisted{nodes, t}
	own, other := setOf("workers"), setOf("others")
	c.Tables.Sets.Replace([]*machinev1.MachineSet{own, other}, 1)
	if v, _ := c.ViewSet(own); len(v.Machines) != 3 || len(v.Nodes) != 3 || v.Sets != nil {
		t.Errorf("the set has %d machines, %d nodes and sees %d sets, want 3, 3, 0", len(v.Machines), len(v.Nodes),
			len(v.Sets))
	}
	if v, _ := c.ViewSet(other); len(v.Machines) != 0 || len(v.Nodes) != 0 {
		t.Errorf("the other set has %d machines and %d nodes, want none", len(v.Machines), len(v.Nodes))
	}
	lone, _ := running(9)
	lone.Metadata.OwnerReferences = nil
	c.Tables.Machines.Step(2, []resource.Change[*machinev1.Machine]{{Key: object.KeyOf(lone), Object: lone}})
	if v, _ := c.ViewSet(other); len(v.Machines) != 1 || len(v.Sets) != 2 {
		t.Errorf("with a machine without an owner the other set sees %d machines and %d sets, want 1 and 2",
			len(v.Machines), len(v.Sets))
	}
}

// lead makes the machine of a number and its node those of a control plane.
func lead(i int) (*machinev1.Machine, *nodev1.Node) {
	m, n := running(i)
	m.Metadata.Labels = map[string]string{plan.LabelRole: plan.RoleMaster, plan.LabelType: plan.RoleMaster}
	m.Metadata.OwnerReferences = nil
	n.Metadata.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	return m, n
}

func TestAControlPlaneIsPlannedWithoutReadingOtherMachinesAndNodes(t *testing.T) {
	c, nodes := fleet(t, 3)
	c.Nodes = unlisted{nodes, t}
	put := func(m *machinev1.Machine, n *nodev1.Node) {
		if m != nil {
			c.Tables.Machines.Step(c.Tables.Machines.Revision()+1, []resource.Change[*machinev1.Machine]{
				{Key: object.KeyOf(m), Object: m},
			})
		}
		nodes.Step(nodes.Revision()+1, []resource.Change[*nodev1.Node]{{Key: object.KeyOf(n), Object: n}})
	}
	put(lead(10))
	put(lead(11))
	worker, promoted := lead(12) // a node of the control plane that is a worker's: it is managed
	worker.Metadata.Labels = nil
	put(worker, promoted)
	_, stray := lead(13)
	put(nil, stray)
	set := newControlPlane()
	set.Metadata.Namespace = "openshift-machine-api"
	v, _ := c.ViewControlPlane(set)
	if got := names(v.Machines); len(got) != 3 || len(v.Nodes) != 4 {
		t.Errorf("it sees machines %v and %d nodes, want 3 and 4", got, len(v.Nodes))
	}
	c.Nodes = nodes
	all, few := v, v
	all.Machines, all.Nodes = c.machinesIn("openshift-machine-api"), map[string]*nodev1.Node{}
	for n := range nodes.Objects() {
		all.Nodes[n.GetMetadata().GetName()] = n
	}
	want, got := plan.ControlPlane(all), plan.ControlPlane(few)
	if want.Fault != "Found 1 unmanaged node(s): worker-00013" || got.Fault != want.Fault ||
		!proto.Equal(got.Status, want.Status) || len(got.Members) != len(want.Members) {
		t.Errorf("the plan is %+v, that of all machines and nodes %+v", got, want)
	}
	// A selector that does not name the role may match any machine.
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	if v, _ := c.ViewControlPlane(set); len(v.Machines) != 6 {
		t.Errorf("it sees machines %v, want all", names(v.Machines))
	}
}

func TestTheNodeOfAWorkerWakesNoControlPlane(t *testing.T) {
	c, nodes := fleet(t, 1)
	woken := make(chan string, 10)
	c.controlPlanes = controller.NewLoop("test", 1, func(_ context.Context, key string) (time.Time, error) {
		woken <- key
		return time.Time{}, nil
	}, quiet())
	c.controlPlanes.Begin(func() []string { return []string{"begun"} })
	background(t, c.controlPlanes.Run)
	<-woken // it runs
	set := newControlPlane()
	set.Metadata.Namespace = "openshift-machine-api"
	c.Tables.ControlPlanes.Replace([]*machinev1.ControlPlaneMachineSet{set}, 1)
	change := func(before, now *nodev1.Node) {
		nodes.Step(nodes.Revision()+1, []resource.Change[*nodev1.Node]{
			{Key: object.KeyOf(now), Object: now, Previous: before, Existed: before != nil},
		})
	}
	_, worker := running(0)
	change(worker, worker)
	_, master := lead(5)
	change(nil, master)
	if got := <-woken; got != object.KeyOf(set).String() {
		t.Errorf("woken: %s", got)
	}
	plain := object.Clone(master)
	plain.Metadata.Labels = nil
	change(master, plain) // it was a node of the control plane
	if got := <-woken; got != object.KeyOf(set).String() {
		t.Errorf("woken: %s", got)
	}
	change(plain, plain)
	c.controlPlanes.Add("last")
	if got := <-woken; got != "last" {
		t.Errorf("the node of a worker woke %s", got)
	}
}

func setOf(name string) *machinev1.MachineSet {
	return &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: name, Uid: "uid-" + name},
	}
}

// BenchmarkSetChange is the work of one machine set that goes, by the number of sets: on the goroutine that all changes
// pass ("informer"), and to plan for another set ("view").
func BenchmarkSetChange(b *testing.B) {
	for _, n := range []int{500, 1000, 5000} {
		c, _ := fleet(b, 3)
		sets := make([]*machinev1.MachineSet, n)
		for i := range sets {
			sets[i] = setOf(fmt.Sprintf("set-%05d", i))
		}
		c.Tables.Sets.Replace(sets, 1)
		b.Run(fmt.Sprintf("informer/%d", n), func(b *testing.B) {
			gone := resource.Change[*machinev1.MachineSet]{
				Key: object.KeyOf(sets[0]), Object: sets[0], Previous: sets[0], Existed: true, Deleted: true,
			}
			for b.Loop() {
				c.setChanged(gone)
			}
		})
		b.Run(fmt.Sprintf("view/%d", n), func(b *testing.B) {
			for b.Loop() {
				c.ViewSet(sets[n/2])
			}
		})
	}
}
