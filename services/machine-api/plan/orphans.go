package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What is done about orphans: instances that no machine needs.
const (
	ReportOrphans = "Report"
	DeleteOrphans = "Delete"
)

const (
	// orphansEvery is how often the providers are asked for their instances.
	orphansEvery = 30 * time.Second
	// orphanSure is how long an instance is an orphan, in at least two looks, before that is reported.
	orphanSure = 10 * time.Second
	// orphansAtOnce is how many orphans of a provider are deleted after one listing, and nextOrphans when it is listed
	// again then, for the others and to see that these are gone.
	orphansAtOnce = 10
	nextOrphans   = 10 * time.Second
	// orphansShare is the part of a provider's instances, one in so many, up to which orphans are deleted. More of them
	// mean that machines are missing, as in an etcd that was restored from an old snapshot. One is always allowed.
	orphansShare = 10

	deleteInstance = "DeleteInstance"

	instanceDeleting = "Deleting"
)

// ProvidedInstances are what a provider answered when it was asked for its instances.
type ProvidedInstances struct {
	Provider  string
	Instances []*providerv1.Instance
	Unknown   string // why they are not known; empty if they are
}

// OrphanView is everything that a decision about orphans depends on.
type OrphanView struct {
	Now       time.Time // with a monotonic reading, as those in Since have, so that a step of the clock means nothing
	Policy    string
	Grace     time.Duration // how long an instance is an orphan before it is deleted
	Providers []ProvidedInstances
	// Machines are all that existed at the time when the providers had answered, or later: a machine exists before its
	// instance is made.
	Machines []*machinev1.Machine
	Unseen   string // why the machines are not known; empty if they are
	Nodes    []*nodev1.Node
	NoNodes  string               // why the nodes are not known; empty if they are
	Since    map[string]time.Time // when each orphan was first found, by OrphanKey, of those that the last look found too
}

// OrphanPlan says which instances are orphans, and what to do about them.
type OrphanPlan struct {
	Items   []*machinev1.ProvidedInstance
	Unknown []*machinev1.UnknownProvider
	Since   map[string]time.Time // as in the view, for the next look
	Sure    []*machinev1.ProvidedInstance
	Delete  []*machinev1.ProvidedInstance
	Held    []*metav1.HeldBack
	Wake    time.Time
}

// OrphanKey names an instance of a provider. Provider IDs are never given again.
func OrphanKey(provider, providerID string) string { return provider + " " + providerID }

// Orphans decides about the instances that no machine needs. An instance is an orphan if no machine has its request
// token or machine uid as its uid, nor its provider ID; or if its machine has another instance. While a provider or the
// machines are not known, none of the instances in question is an orphan. Deleted are only those that carry the token
// of a machine that is gone, and that no node runs on.
func Orphans(v OrphanView) OrphanPlan {
	p := OrphanPlan{Since: map[string]time.Time{}, Wake: v.Now.Add(orphansEvery)}
	byUID, byID := map[string]*machinev1.Machine{}, map[string]*machinev1.Machine{}
	for _, m := range v.Machines {
		byUID[m.GetMetadata().GetUid()] = m
		if id := m.GetSpec().GetProviderId(); id != "" {
			byID[id] = m
		}
	}
	for _, of := range v.Providers {
		if of.Unknown != "" {
			p.Unknown = append(p.Unknown, &machinev1.UnknownProvider{Provider: of.Provider, Message: of.Unknown})
			for key, since := range v.Since {
				if len(key) > len(of.Provider) && key[:len(of.Provider)+1] == OrphanKey(of.Provider, "") {
					p.Since[key] = since // found again or not when it answers
				}
			}
			continue
		}
		p.provider(v, of, byUID, byID)
	}
	return p
}

// provider decides about the instances of one provider.
func (p *OrphanPlan) provider(v OrphanView, of ProvidedInstances, byUID, byID map[string]*machinev1.Machine) {
	var old []*machinev1.ProvidedInstance
	orphans := 0
	for _, i := range of.Instances {
		item := &machinev1.ProvidedInstance{Provider: of.Provider, Instance: i}
		p.Items = append(p.Items, item)
		m, why := neededBy(i, byUID, byID)
		if m != nil {
			item.Machine = object.Reference(m)
		}
		if why == "" || v.Unseen != "" {
			continue
		}
		item.Orphan, item.Message = true, why
		key := OrphanKey(of.Provider, i.GetProviderId())
		since, before := v.Since[key]
		if !before {
			since = v.Now
		}
		p.Since[key] = since
		item.OrphanTime = object.Timestamp(since)
		if i.GetState() == instanceDeleting {
			continue // it goes by itself
		}
		orphans++
		age := v.Now.Sub(since)
		if !before || age < orphanSure {
			p.Wake = earlier(p.Wake, since.Add(orphanSure))
			continue
		}
		p.Sure = append(p.Sure, item)
		node := nodeOn(i, v.Nodes)
		switch token := cmp.Or(i.GetRequestToken(), i.GetMachineUid()); {
		case m != nil:
			p.hold(item, "a machine exists that it was made for",
				"check which of its instances is in use, and delete the other at the provider")
		case token == "":
			p.hold(item, "the provider does not say which machine it was made for", "delete it at the provider")
		case node != "":
			p.hold(item, fmt.Sprintf("node %s runs on it", node), fmt.Sprintf(
				"drain the node and delete it (windlass adm drain %s, windlass delete node %s)", node, node))
		case v.NoNodes != "":
			p.hold(item, "the nodes are not known: "+v.NoNodes, "")
		case v.Policy != DeleteOrphans:
			p.hold(item, "orphans are only reported",
				"delete it at the provider, or run machine-api with --orphaned-instances=delete")
		case age < v.Grace:
			p.hold(item, fmt.Sprintf("it is deleted after %s as an orphan", v.Grace), "")
			p.Wake = earlier(p.Wake, since.Add(v.Grace))
		default:
			old = append(old, item)
		}
	}
	switch {
	case orphans > max(1, len(of.Instances)/orphansShare):
		for _, item := range old {
			p.hold(item,
				fmt.Sprintf("%d of %d instances of %s are orphans: machines may be missing, as after etcd was restored "+
					"from an older snapshot", orphans, len(of.Instances), of.Provider), "delete them at the provider")
		}
	default:
		p.Delete = append(p.Delete, old[:min(len(old), orphansAtOnce)]...)
		if len(old) > 0 {
			p.Wake = earlier(p.Wake, v.Now.Add(nextOrphans))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// neededBy returns the machine that an instance was made for, and why it is an orphan nevertheless; empty if it is
// none.
func neededBy(i *providerv1.Instance, byUID, byID map[string]*machinev1.Machine) (*machinev1.Machine, string) {
	if m := byID[i.GetProviderId()]; m != nil {
		return m, ""
	}
	for _, uid := range []string{i.GetRequestToken(), i.GetMachineUid()} {
		m := byUID[uid]
		if m == nil || uid == "" {
			continue
		}
		if other := m.GetSpec().GetProviderId(); other != "" && i.GetProviderId() != "" {
			return m, fmt.Sprintf("machine %s has another instance, %s", object.KeyOf(m), other)
		}
		return m, ""
	}
	if i.GetMachineName() == "" {
		return nil, "no machine has it"
	}
	return nil, fmt.Sprintf("no machine has it: it was made for machine %s", i.GetMachineName())
}

// nodeOn returns the name of the node that runs on an instance; empty if there is none.
func nodeOn(i *providerv1.Instance, nodes []*nodev1.Node) string {
	for _, n := range nodes {
		uid := n.GetMetadata().GetAnnotations()[nodeid.MachineUID]
		if uid != "" && (uid == i.GetRequestToken() || uid == i.GetMachineUid()) ||
			n.GetSpec().GetProviderId() == i.GetProviderId() {
			return n.GetMetadata().GetName()
		}
	}
	return ""
}

func (p *OrphanPlan) hold(item *machinev1.ProvidedInstance, why, unblock string) {
	p.Held = append(p.Held, &metav1.HeldBack{
		Action: deleteInstance, Object: instanceReference(item), Reason: why, SinceTime: item.GetOrphanTime(),
		Unblock: unblock,
	})
}

func instanceReference(item *machinev1.ProvidedInstance) *metav1.ObjectReference {
	return &metav1.ObjectReference{Kind: "Instance", Name: item.GetInstance().GetProviderId()}
}

// Answer returns the plan as the answer to a Plan request.
func (p OrphanPlan) Answer(now time.Time) *machinev1.PlanInstancesResponse {
	out := &machinev1.PlanInstancesResponse{
		Items: p.Items, Unknown: p.Unknown, HeldBack: p.Held, NextCheckAfter: durationpb.New(p.Wake.Sub(now)),
	}
	for _, item := range p.Delete {
		out.Actions = append(out.Actions, &metav1.PlannedAction{
			Action: deleteInstance, Object: instanceReference(item), Reason: item.GetMessage(),
			Details: map[string]string{"provider": item.GetProvider()},
		})
	}
	return out
}

// GivenOrphans returns the view that the instances and machines of a Plan request give.
func GivenOrphans(r *machinev1.PlanInstancesRequest, now time.Time) OrphanView {
	v := OrphanView{
		Now: now, Machines: r.GetMachines().GetItems(), Nodes: r.GetNodes().GetItems(),
		Since: map[string]time.Time{},
	}
	for _, item := range r.GetInstances() {
		i := slices.IndexFunc(v.Providers, func(p ProvidedInstances) bool { return p.Provider == item.GetProvider() })
		if i < 0 {
			i = len(v.Providers)
			v.Providers = append(v.Providers, ProvidedInstances{Provider: item.GetProvider()})
		}
		v.Providers[i].Instances = append(v.Providers[i].Instances, item.GetInstance())
		if t := item.GetOrphanTime(); t != nil {
			v.Since[OrphanKey(item.GetProvider(), item.GetInstance().GetProviderId())] = t.AsTime()
		}
	}
	return v
}
