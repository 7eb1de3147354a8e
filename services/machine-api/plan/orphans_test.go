package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

const cloudName = "provider-a"

// made is an instance that was made for the machine of a uid.
func made(id, uid string, change ...func(*providerv1.Instance)) *providerv1.Instance {
	i := &providerv1.Instance{
		ProviderId: id, MachineName: "of-" + uid, MachineUid: uid, RequestToken: uid,
		State: "Running",
	}
	for _, f := range change {
		f(i)
	}
	return i
}

// having is a machine with an instance, or without one if id is empty.
func having(uid, id string) *machinev1.Machine {
	return &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: "n", Name: "m-" + uid, Uid: uid}, Spec: &machinev1.MachineSpec{
			ProviderId: id,
		},
	}
}

func TestInstancesWithoutMachines(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	nine := func(list ...*providerv1.Instance) []*providerv1.Instance { // and nine whose machines exist
		for n := range 9 {
			list = append(list, made(fmt.Sprint("x", n), fmt.Sprint("u", n)))
		}
		return list
	}
	var machines []*machinev1.Machine
	for n := range 9 {
		machines = append(slices.Clip(machines), having(fmt.Sprint("u", n), ""))
	}
	without := func(f func(*providerv1.Instance)) []*providerv1.Instance { return nine(made("i1", "gone", f)) }
	type c struct {
		name      string
		instances []*providerv1.Instance
		machines  []*machinev1.Machine
		change    func(*plan.OrphanView)
		found     time.Duration // how long the orphan i1 is known; negative: it is not
		want      string        // "orphans i1 | sure i1 | delete i1 | held i1 why"
		wake      time.Duration
	}
	cases := []c{
		{"its machine has its uid", nine(), machines, nil, -1, "", 30 * time.Second},
		{
			"its machine has its id", nine(made("i1", "")), append(slices.Clip(machines), having("z", "i1")), nil, -1, "",
			30 * time.Second,
		},
		{
			"seen once, it may be on its way", nine(made("i1", "gone")), machines, nil, -1, "orphans i1", 10 * time.Second,
		},
		{"seen twice, too soon", nine(made("i1", "gone")), machines, nil, 9 * time.Second, "orphans i1", time.Second},
		{
			"seen twice", nine(made("i1", "gone")), machines, nil, 10 * time.Second,
			"orphans i1 | sure i1 | held i1 it is deleted after 1h0m0s as an orphan", 30 * time.Second,
		},
		{
			"the grace is nearly over", nine(made("i1", "gone")), machines, nil, time.Hour - 5*time.Second,
			"orphans i1 | sure i1 | held i1 it is deleted after 1h0m0s as an orphan", 5 * time.Second,
		},
		{
			"the grace is over", nine(made("i1", "gone")), machines, nil, time.Hour, "orphans i1 | sure i1 | delete i1",
			10 * time.Second,
		},
		{
			"only reported", nine(made("i1", "gone")), machines, func(v *plan.OrphanView) { v.Policy = plan.ReportOrphans },
			time.Hour, "orphans i1 | sure i1 | held i1 orphans are only reported", 30 * time.Second,
		},
		{
			"it goes already", without(func(i *providerv1.Instance) { i.State = "Deleting" }), machines, nil, time.Hour,
			"orphans i1", 30 * time.Second,
		},
		{
			"the machines are not known", nine(made("i1", "gone")), nil,
			func(v *plan.OrphanView) { v.Unseen = "etcd does not answer" }, time.Hour, "", 30 * time.Second,
		},
		{
			"the provider does not know for which machine",
			without(func(i *providerv1.Instance) { i.MachineUid, i.RequestToken = "", "" }),
			machines, nil, time.Hour,
			"orphans i1 | sure i1 | held i1 the provider does not say which machine it was made for", 30 * time.Second,
		},
		{
			"its machine has another one", nine(made("i1", "u"), made("i2", "u")),
			append(slices.Clip(machines), having("u", "i2")), nil,
			time.Hour, "orphans i1 | sure i1 | held i1 a machine exists that it was made for", 30 * time.Second,
		},
		{
			"two for a machine that has none yet", nine(made("i1", "u"), made("i2", "u")),
			append(slices.Clip(machines), having("u", "")),
			nil, time.Hour, "", 30 * time.Second,
		},
		{
			"its node exists", nine(made("i1", "gone")), machines, func(v *plan.OrphanView) {
				v.Nodes = []*nodev1.Node{{
					Metadata: &metav1.ObjectMeta{Name: "n1"}, Spec: &nodev1.NodeSpec{ProviderId: "i1"},
				}}
			}, time.Hour, "orphans i1 | sure i1 | held i1 node n1 runs on it", 30 * time.Second,
		},
		{
			"its node joined with its uid", nine(made("i1", "gone")), machines, func(v *plan.OrphanView) {
				v.Nodes = []*nodev1.Node{{Metadata: &metav1.ObjectMeta{
					Name: "n1", Annotations: map[string]string{"windlass.dev/machine-uid": "gone"},
				}}}
			}, time.Hour, "orphans i1 | sure i1 | held i1 node n1 runs on it", 30 * time.Second,
		},
		{
			"the nodes are not known", nine(made("i1", "gone")), machines,
			func(v *plan.OrphanView) { v.NoNodes = "eviction-controller does not answer" }, time.Hour,
			"orphans i1 | sure i1 | held i1 the nodes are not known: eviction-controller does not answer", 30 * time.Second,
		},
		{
			"machines may be missing", nine(made("i1", "gone"), made("i3", "gone too")), machines, nil, time.Hour,
			"orphans i1 i3 | sure i1 | held i1 2 of 11 instances of provider-a are orphans: machines may be missing, as after " +
				"etcd was restored from an older snapshot", 10 * time.Second,
		},
		{
			"the only instance",
			[]*providerv1.Instance{made("i1", "gone")},
			nil, nil, time.Hour,
			"orphans i1 | sure i1 | delete i1", 10 * time.Second,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := plan.OrphanView{
				Now: at, Policy: plan.DeleteOrphans, Grace: time.Hour, Machines: c.machines, Since: map[string]time.Time{},
				Providers: []plan.ProvidedInstances{{Provider: cloudName, Instances: c.instances}},
			}
			if c.found >= 0 {
				v.Since[plan.OrphanKey(cloudName, "i1")] = at.Add(-c.found)
			}
			if c.change != nil {
				c.change(&v)
			}
			p := plan.Orphans(v)
			if got := describeOrphans(p); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			if got := p.Wake.Sub(at); got != c.wake {
				t.Errorf("again in %s, want %s", got, c.wake)
			}
		})
	}
}

func describeOrphans(p plan.OrphanPlan) string {
	var parts, orphans []string
	for _, i := range p.Items {
		if i.GetOrphan() {
			orphans = append(orphans, i.GetInstance().GetProviderId())
		}
	}
	ids := func(word string, list []*machinev1.ProvidedInstance) {
		for _, i := range list {
			word += " " + i.GetInstance().GetProviderId()
		}
		if len(list) > 0 {
			parts = append(parts, word)
		}
	}
	if len(orphans) > 0 {
		parts = append(parts, "orphans "+strings.Join(orphans, " "))
	}
	ids("sure", p.Sure)
	ids("delete", p.Delete)
	for _, h := range p.Held {
		parts = append(parts, "held "+h.GetObject().GetName()+" "+h.GetReason())
	}
	return strings.Join(parts, " | ")
}

func TestAProviderThatDoesNotAnswerKeepsWhatIsKnown(t *testing.T) {
	at := time.Now()
	since := map[string]time.Time{
		plan.OrphanKey("provider-a", "i1"): at.Add(-time.Hour), plan.OrphanKey("provider-ab", "i2"): at.Add(-time.Hour),
	}
	p := plan.Orphans(plan.OrphanView{
		Now: at, Policy: plan.DeleteOrphans, Grace: time.Minute, Since: since,
		Providers: []plan.ProvidedInstances{
			{Provider: "provider-a", Unknown: "connection refused"},
			{Provider: "provider-ab"},
		},
	})
	if len(p.Delete) != 0 || len(p.Unknown) != 1 || p.Unknown[0].GetMessage() != "connection refused" {
		t.Errorf("delete %v, unknown %v", p.Delete, p.Unknown)
	}
	if _, kept := p.Since[plan.OrphanKey("provider-a", "i1")]; !kept || len(p.Since) != 1 {
		t.Errorf("since %v: that of the silent provider is kept, the other is gone", p.Since)
	}
}

// Whatever providers and machines say: an instance whose machine exists is never deleted, nor one that was not found in
// an earlier look, the grace long, nor one with a node.
func TestNoInstanceThatIsNeededIsDeleted(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	uids := rapid.SampledFrom([]string{"", "u1", "u2", "u3", "u4"})
	ids := rapid.SampledFrom([]string{"", "i1", "i2", "i3"})
	rapid.Check(t, func(t *rapid.T) {
		v := plan.OrphanView{
			Now: at, Policy: rapid.SampledFrom([]string{plan.DeleteOrphans, plan.ReportOrphans}).Draw(t, "policy"),
			Grace: time.Duration(rapid.IntRange(1, 100).Draw(t, "grace")) * time.Minute, Since: map[string]time.Time{},
			Unseen:  rapid.SampledFrom([]string{"", "", "etcd"}).Draw(t, "unseen"),
			NoNodes: rapid.SampledFrom([]string{"", "", "nodes"}).Draw(t, "no nodes"),
		}
		of := plan.ProvidedInstances{Provider: cloudName}
		for _, id := range []string{"i1", "i2", "i3"} {
			if rapid.Bool().Draw(t, "there") {
				of.Instances = append(of.Instances, made(id, uids.Draw(t, "uid"), func(i *providerv1.Instance) {
					i.RequestToken = uids.Draw(t, "token")
				}))
			}
			if rapid.Bool().Draw(t, "known") {
				v.Since[plan.OrphanKey(cloudName, id)] = at.Add(-time.Duration(rapid.IntRange(0, 200).Draw(t, "age")) * time.Minute)
			}
		}
		v.Providers = []plan.ProvidedInstances{of}
		for n := range rapid.IntRange(0, 3).Draw(t, "machines") {
			m := having(uids.Draw(t, "machine"), ids.Draw(t, "id"))
			if m.GetMetadata().GetUid() != "" {
				v.Machines = append(v.Machines, m)
			}
			if rapid.Bool().Draw(t, "node") {
				v.Nodes = append(v.Nodes, &nodev1.Node{
					Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("n", n)}, Spec: &nodev1.NodeSpec{ProviderId: ids.Draw(t, "on")},
				})
			}
		}
		p := plan.Orphans(v)
		for _, d := range p.Delete {
			i := d.GetInstance()
			needed := slices.ContainsFunc(v.Machines, func(m *machinev1.Machine) bool {
				uid := m.GetMetadata().GetUid()
				return uid == i.GetMachineUid() || uid == i.GetRequestToken() || m.GetSpec().GetProviderId() == i.GetProviderId()
			})
			node := slices.ContainsFunc(v.Nodes, func(n *nodev1.Node) bool {
				return n.GetSpec().GetProviderId() == i.GetProviderId()
			})
			since, before := v.Since[plan.OrphanKey(cloudName, i.GetProviderId())]
			if needed || node || !before || at.Sub(since) < v.Grace || v.Policy != plan.DeleteOrphans || v.Unseen != "" ||
				v.NoNodes != "" || i.GetMachineUid()+i.GetRequestToken() == "" {
				t.Fatalf("%v is deleted: needed %t, node %t, since %s (%t)", i, needed, node, since, before)
			}
		}
		if orphans := len(p.Since); orphans > 1 && len(p.Delete) > 0 {
			t.Fatalf("%d of %d instances are orphans, and %d are deleted", orphans, len(of.Instances), len(p.Delete))
		}
	})
}
