package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// orphansNamed is how many orphans the condition of the ClusterOperator names.
const orphansNamed = 3

// orphans is what the leader remembers of the last listing of each provider. It is safe for concurrent use.
type orphans struct {
	mu      sync.Mutex
	since   map[string]map[string]time.Time // by provider, then by plan.OrphanKey
	sure    map[string][]string             // by provider: IDs of the orphans that are sure
	unknown map[string]string               // by provider: why its instances were not known
	told    map[string]bool                 // by plan.OrphanKey: an event was written
}

func (o *orphans) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since, o.sure = map[string]map[string]time.Time{}, map[string][]string{}
	o.unknown, o.told = map[string]string{}, map[string]bool{}
}

// before returns when the orphans of providers were first found.
func (o *orphans) before(names []string) map[string]time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]time.Time{}
	for _, name := range names {
		maps.Copy(out, o.since[name])
	}
	return out
}

// keep remembers the listing of one provider, and returns the orphans that are sure now and were not before. While
// nothing is known, the last listing counts.
func (o *orphans) keep(name string, p plan.OrphanPlan, unseen string) []*machinev1.ProvidedInstance {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unknown, name)
	switch {
	case len(p.Unknown) > 0:
		o.unknown[name] = p.Unknown[0].GetMessage()
		return nil
	case unseen != "":
		o.unknown[name] = "the machines are not known: " + unseen
		return nil
	}
	o.since[name], o.sure[name] = p.Since, nil
	for key := range o.told {
		if _, still := p.Since[key]; !still && strings.HasPrefix(key, plan.OrphanKey(name, "")) {
			delete(o.told, key)
		}
	}
	var fresh []*machinev1.ProvidedInstance
	for _, item := range p.Sure {
		id := item.GetInstance().GetProviderId()
		o.sure[name] = append(o.sure[name], id)
		if key := plan.OrphanKey(name, id); !o.told[key] {
			o.told[key] = true
			fresh = append(fresh, item)
		}
	}
	return fresh
}

// reconcileInstances looks for instances of a provider that no machine needs.
func (c *Controller) reconcileInstances(ctx context.Context, name string) (time.Time, error) {
	v := c.viewOrphans(ctx, name)
	p := plan.Orphans(v)
	fresh := c.orphans.keep(name, p, v.Unseen)
	cluster, known := c.Tables.Infrastructure.Lookup("", kinds.ClusterName)
	tell := func(typ, reason, format string, args ...any) {
		if known {
			c.Events.Event(cluster, typ, reason, fmt.Sprintf(format, args...))
		}
	}
	for _, item := range fresh {
		tell(events.Warning, "OrphanedInstance", "Instance %s of %s: %s",
			item.GetInstance().GetProviderId(), name, item.GetMessage())
	}
	errs := inParallel(p.Delete, func(item *machinev1.ProvidedInstance) error {
		i := item.GetInstance()
		err := c.Providers.Reap(ctx, name, i, cmp.Or(i.GetRequestToken(), i.GetMachineUid()))
		if err != nil {
			tell(events.Warning, "OrphanDeletionFailed", "Instance %s of %s: %s", i.GetProviderId(), name, describe(err))
			return fmt.Errorf("delete orphan %s: %w", i.GetProviderId(), err)
		}
		tell(events.Normal, "OrphanDeleted", "Requested the deletion of instance %s of %s: %s", i.GetProviderId(), name,
			item.GetMessage())
		return nil
	})
	return p.Wake, errors.Join(errs...)
}

// viewOrphans asks providers for their instances, and then makes sure that every machine is known which had one.
func (c *Controller) viewOrphans(ctx context.Context, names ...string) plan.OrphanView {
	v := plan.OrphanView{
		Policy: c.OrphanPolicy, Grace: c.OrphanGrace, Providers: c.Providers.List(ctx, names...),
		Since: c.orphans.before(names),
	}
	limited, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	if err := c.Tables.Machines.CatchUp(limited); err != nil {
		v.Unseen = "etcd does not answer"
	}
	if err := c.CatchUpNodes(limited); err != nil || !c.Nodes.IsSynced() {
		v.NoNodes = "eviction-controller does not answer"
	}
	v.Nodes = slices.Collect(c.Nodes.Objects())
	v.Now, v.Machines = c.Now(), slices.Collect(c.Tables.Machines.Objects())
	return v
}

// ViewOrphans asks all providers for their instances. Since when an instance is an orphan is known to the leader only.
func (c *Controller) ViewOrphans(ctx context.Context) plan.OrphanView {
	return c.viewOrphans(ctx, c.Providers.Names()...)
}

// OrphanSettings returns what is done about orphans, and how long after they were found.
func (c *Controller) OrphanSettings() (policy string, grace time.Duration) {
	return c.OrphanPolicy, c.OrphanGrace
}

// OrphanCondition says on the ClusterOperator whether there are instances that no machine needs; the zero Condition
// before the first look.
func (c *Controller) OrphanCondition() clusteroperator.Condition {
	c.orphans.mu.Lock()
	defer c.orphans.mu.Unlock()
	out := clusteroperator.Condition{Type: "OrphanedInstances", Status: "False", Reason: "AsExpected"}
	var ids []string
	for _, list := range c.orphans.sure {
		ids = append(ids, list...)
	}
	slices.Sort(ids)
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(c.orphans.unknown)) {
		unknown = append(unknown, name+": "+c.orphans.unknown[name])
	}
	switch {
	case len(ids) > 0:
		more := ""
		if len(ids) > orphansNamed {
			more = fmt.Sprintf(" and %d more", len(ids)-orphansNamed)
		}
		out.Status, out.Reason = "True", "NoMachine"
		out.Message = fmt.Sprintf("%d instances have no machine: %s%s (windlass get instances)", len(ids),
			strings.Join(ids[:min(len(ids), orphansNamed)], ", "), more)
		if len(ids) == 1 {
			out.Message = fmt.Sprintf("instance %s has no machine (windlass get instances)", ids[0])
		}
	case len(unknown) > 0:
		out.Status, out.Reason, out.Message = "Unknown", "InstancesUnknown", strings.Join(unknown, "; ")
	case len(c.orphans.since) == 0:
		return clusteroperator.Condition{}
	}
	return out
}
