package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// scaled is how long it may take until machines have come or gone.
const scaled = time.Minute

// workerSet returns the set of workers that the tour scales: the first one that is not the tour's own.
func (t *tour) workerSet(ctx context.Context) (*machinev1.MachineSet, error) {
	sets, err := t.cluster.listSets(ctx, "!"+tourLabel)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if s.GetSpec().GetReplicas() > 0 {
			return s, nil
		}
	}
	return nil, mismatch{{expected: "a machine set with workers", seen: fmt.Sprintf("%d sets without", len(sets))}}
}

// workersOf returns the machines that belong to a set.
func (t *tour) workersOf(ctx context.Context, set *machinev1.MachineSet) ([]*machinev1.Machine, error) {
	all, err := t.cluster.listMachines(ctx, "")
	return slices.DeleteFunc(all, func(m *machinev1.Machine) bool { return !belongs(m, set) }), err
}

func belongs(m *machinev1.Machine, set *machinev1.MachineSet) bool {
	for _, o := range m.GetMetadata().GetOwnerReferences() {
		if o.GetUid() == set.GetMetadata().GetUid() {
			return true
		}
	}
	return false
}

// scale adds two workers and takes two away, of which one is named.
func (t *tour) scale(ctx context.Context) error {
	const more = 2
	set, err := t.workerSet(ctx)
	if err != nil {
		return err
	}
	before, err := t.workersOf(ctx, set)
	if err != nil {
		return err
	}
	name, n := set.GetMetadata().GetName(), int(set.GetSpec().GetReplicas())
	if err := t.check(expect(len(before) == n, fmt.Sprintf("%d machines of set %s", n, name), "%s",
		strings.Join(names(before), ", "))); err != nil {
		return err
	}
	up, err := t.scaleTo(ctx, set, n+more)
	if err != nil {
		return err
	}
	created := up.created(names(before))
	t.saw("%s come up side by side; they run and their nodes are Ready after %.1f s", strings.Join(created, " and "),
		up.took.Seconds())
	if err := t.check(expect(len(created) == more, fmt.Sprintf("%d new machines", more), "%q", created),
		up.sideBySide(created)); err != nil {
		return err
	}
	// An old one, which nothing else would choose before the others.
	marked := before[0].GetMetadata().GetName()
	if _, err := t.windlass(ctx, "annotate", "machine", marked, deleteFirst+"=true"); err != nil {
		return err
	}
	order, err := t.deletions(ctx, set, n)
	if err != nil {
		return err
	}
	down, err := t.scaleTo(ctx, set, n)
	if err != nil {
		return err
	}
	t.saw("%s, which was annotated, went, and with it %s; their nodes are gone after %.1f s", marked,
		strings.Join(without(down.gone, marked), ", "), down.took.Seconds())
	t.paragraph(
		`Set %s was asked for %d machines and made %d at once, not one after the other. Asked for %d again it deleted first the machine `+
			`that the annotation names, and the node of each went with its machine.`, name, n+more, more, n)
	return t.check(expect(len(order) == more && order[0] == marked, "a plan that deletes "+marked+" first", "%q", order),
		expect(slices.Contains(down.gone, marked), marked+" gone", "gone are %q", down.gone),
		expect(len(down.gone) == more, fmt.Sprintf("%d machines gone", more), "%q", down.gone))
}

func without(list []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == name })
}

// deletions returns which machines a set would delete if it were asked for fewer, in order.
func (t *tour) deletions(ctx context.Context, set *machinev1.MachineSet, replicas int) ([]string, error) {
	few := int32(replicas)
	p, err := t.cluster.sets.PlanMachineSet(ctx, &machinev1.PlanMachineSetRequest{
		Namespace: namespace,
		Name:      set.GetMetadata().GetName(), Replicas: &few,
	})
	var out []string
	for _, d := range p.GetDeletions() {
		out = append(out, d.GetMachine())
	}
	return out, err
}

// scaling is what happened while a set was scaled.
type scaling struct {
	took  time.Duration
	first map[string]int64 // revision at which a machine was first seen, by name
	runs  map[string]int64 // revision at which a machine first ran
	gone  []string
}

// scaleTo asks for a number of machines and waits until they are there, with nodes that are Ready, and no others.
func (t *tour) scaleTo(ctx context.Context, set *machinev1.MachineSet, replicas int) (*scaling, error) {
	ctx, cancel := context.WithTimeout(ctx, scaled)
	defer cancel()
	watching, stop := context.WithCancel(ctx)
	g, watching := errgroup.WithContext(watching)
	seen := make(chan observation)
	w := witness{t.cluster, seen}
	if err := w.watch(watching, g); err != nil {
		stop()
		return nil, errors.Join(err, g.Wait())
	}
	s := &scaling{first: map[string]int64{}, runs: map[string]int64{}}
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		s.collect(watching, seen, set)
	}()
	began := time.Now()
	_, err := t.windlass(ctx, "scale", "machineset", set.GetMetadata().GetName(), fmt.Sprintf("--replicas=%d", replicas))
	if err == nil {
		err = until(ctx, fmt.Sprintf("%d machines of set %s with nodes that are Ready", replicas,
			set.GetMetadata().GetName()), func(ctx context.Context) (bool, string, error) {
			return t.hasMachines(ctx, set, replicas)
		})
	}
	s.took = time.Since(began)
	stop()
	<-collected
	return s, errors.Join(err, g.Wait())
}

// collect records what happens to the machines of a set until ctx ends.
func (s *scaling) collect(ctx context.Context, seen <-chan observation, set *machinev1.MachineSet) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-seen:
			if o.machine == nil || !belongs(o.machine, set) {
				continue
			}
			name := o.machine.GetMetadata().GetName()
			switch {
			case o.deleted:
				s.gone = append(s.gone, name)
			case s.first[name] == 0:
				s.first[name] = revision(o.machine)
			}
			if o.machine.GetStatus().GetPhase() == "Running" && s.runs[name] == 0 {
				s.runs[name] = revision(o.machine)
			}
		}
	}
}

// created returns the machines that were not there before, in order.
func (s *scaling) created(before []string) []string {
	var out []string
	for name := range s.first {
		if !slices.Contains(before, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// sideBySide says that all machines had been created before the first of them ran.
func (s *scaling) sideBySide(machines []string) fact {
	var lastCreated, firstRuns int64
	for _, name := range machines {
		lastCreated = max(lastCreated, s.first[name])
		if firstRuns == 0 || s.runs[name] < firstRuns {
			firstRuns = s.runs[name]
		}
	}
	return expect(lastCreated > 0 && lastCreated < firstRuns, "all machines created before the first of them runs",
		"the last was created at revision %d, the first ran at %d", lastCreated, firstRuns)
}

// hasMachines reports whether a set has just so many machines, all of which run, whose nodes are Ready, and whether its
// status says so.
func (t *tour) hasMachines(ctx context.Context, set *machinev1.MachineSet, replicas int) (bool, string, error) {
	machines, err := t.workersOf(ctx, set)
	if err != nil {
		return false, "", err
	}
	all, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return false, "", err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return false, "", err
	}
	now, err := t.cluster.sets.GetMachineSet(ctx, &machinev1.GetMachineSetRequest{
		Namespace: namespace,
		Name:      set.GetMetadata().GetName(),
	}, patient)
	var wrong []string
	for _, f := range healthy(all, nodes) {
		if !f.holds {
			wrong = append(wrong, f.expected+": "+f.seen)
		}
	}
	seen := fmt.Sprintf("machines %s; %d nodes; %d ready; %s", strings.Join(names(machines), ", "), len(nodes),
		now.GetStatus().GetReadyReplicas(), strings.Join(wrong, "; "))
	return len(machines) == replicas && len(nodes) == len(all) && len(wrong) == 0 &&
		int(now.GetStatus().GetReadyReplicas()) == replicas, seen, err
}
