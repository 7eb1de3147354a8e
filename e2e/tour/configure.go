package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// configuredWithin is how long it may take until all nodes of a pool have a new configuration.
const configuredWithin = 3 * time.Minute

// columns are those of `windlass get mcp`.
const columns = "NAME CONFIG UPDATED UPDATING DEGRADED MACHINECOUNT READYMACHINECOUNT UPDATEDMACHINECOUNT DEGRADEDMACHINECOUNT AGE"

// configure gives the workers and then the control plane a new configuration, and takes it back.
func (t *tour) configure(ctx context.Context) error {
	before, err := t.configurations(ctx)
	if err != nil {
		return err
	}
	if err := t.configurePool(ctx, "worker"); err != nil {
		return err
	}
	if err := t.configurePool(ctx, "master"); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "get", "mcp")
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(narrow(out)))
	head, _, _ := strings.Cut(out, "\n")
	if err := t.check(expect(strings.Join(strings.Fields(head), " ") == columns, "columns "+columns, "%s",
		head)); err != nil {
		return err
	}
	if err := t.refuseImpossible(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := t.remove(ctx, "configure-worker.yaml", "configure-master.yaml"); err != nil {
		return err
	}
	if err := t.configuredAs(ctx, before); err != nil {
		return err
	}
	left, err := t.standing(ctx)
	if err != nil {
		return err
	}
	t.saw("taken back everywhere after %.1f s", time.Since(began).Seconds())
	t.paragraph(
		`Node by node the cluster went to a new configuration: cordoned, drained, given its files and its service, restarted and taken into service again. A control-plane ` +
			`node begins only when it has the permit to disrupt the quorum, of which there is one. What a machine configuration brought goes with it.`)
	return t.check(expect(len(left) == 0, "no file and no service of the tour on any machine", "%s",
		strings.Join(left, "; ")))
}

// refuseImpossible asks for a configuration that no machine can be given, and checks that no node is disturbed for it.
func (t *tour) refuseImpossible(ctx context.Context) error {
	now, err := t.configurations(ctx)
	if err != nil {
		return err
	}
	if err := t.configuredAs(ctx, now); err != nil {
		return err
	}
	before, err := t.asked(ctx)
	if err != nil {
		return err
	}
	if err := t.apply(ctx, "configure-impossible.yaml"); err != nil {
		return err
	}
	why := ""
	if err := within(ctx, answers, "RenderDegraded of the pool worker", func(ctx context.Context) (bool, string, error) {
		pools, err := t.cluster.listPools(ctx)
		for _, p := range pools {
			c := conditionIn(p.GetStatus().GetConditions(), "RenderDegraded")
			if p.GetMetadata().GetName() == "worker" && c.GetStatus() == "True" {
				why = c.GetMessage()
			}
		}
		return why != "", fmt.Sprint(pools), err
	}); err != nil {
		return err
	}
	t.saw("%s", why)
	after, err := t.asked(ctx)
	if err != nil {
		return err
	}
	if err := t.check(
		expect(strings.Contains(why, `machine config "95-tour-impossible": spec.kernelType: `),
			"the field and its machine config", "%s", why),
		expect(maps.Equal(before, after), "no node asked for another configuration, none cordoned", "%v", after),
	); err != nil {
		return err
	}
	return t.remove(ctx, "configure-impossible.yaml")
}

// asked returns what each node is asked to have, and whether it is cordoned.
func (t *tour) asked(ctx context.Context) (map[string]string, error) {
	nodes, err := t.cluster.listNodes(ctx)
	out := map[string]string{}
	for _, n := range nodes {
		out[n.GetMetadata().GetName()] = fmt.Sprint(
			n.GetMetadata().GetAnnotations()["machineconfiguration.openshift.io/desiredConfig"], n.GetSpec().GetUnschedulable())
	}
	return out, err
}

// configurations returns the name of the configuration of each pool.
func (t *tour) configurations(ctx context.Context) (map[string]string, error) {
	pools, err := t.cluster.listPools(ctx)
	out := map[string]string{}
	for _, p := range pools {
		out[p.GetMetadata().GetName()] = p.GetStatus().GetConfiguration().GetName()
	}
	return out, err
}

// configuredAs waits until each pool has a configuration on all of its nodes.
func (t *tour) configuredAs(ctx context.Context, want map[string]string) error {
	return within(ctx, configuredWithin, fmt.Sprintf("configurations %v on all nodes", want),
		func(ctx context.Context) (bool, string, error) {
			pools, err := t.cluster.listPools(ctx)
			var wrong []string
			for _, p := range pools {
				if name := p.GetMetadata().GetName(); !rolledOut(p) || p.GetStatus().GetConfiguration().GetName() != want[name] {
					wrong = append(wrong, fmt.Sprintf("%s: %s", name, p.GetStatus()))
				}
			}
			return err == nil && len(wrong) == 0, strings.Join(wrong, "\n"), err
		})
}

// nodesOfRole returns the nodes that have a role.
func (t *tour) nodesOfRole(ctx context.Context, role string) ([]*nodev1.Node, error) {
	nodes, err := t.cluster.listNodes(ctx)
	return slices.DeleteFunc(nodes, func(n *nodev1.Node) bool {
		_, ok := n.GetMetadata().GetLabels()["node-role.kubernetes.io/"+role]
		return !ok
	}), err
}

// configurePool gives the nodes of a pool a file and a service, and watches how they come to it.
func (t *tour) configurePool(ctx context.Context, role string) error {
	nodes, err := t.nodesOfRole(ctx, role)
	if err != nil {
		return err
	}
	r := newRollout(nodes)
	watching, stop := context.WithCancel(ctx)
	g, watching := errgroup.WithContext(watching)
	seen := make(chan observation)
	w := witness{t.cluster, seen}
	if err := w.watch(watching, g); err != nil {
		stop()
		return errors.Join(err, g.Wait())
	}
	began := time.Now()
	ws := t.startWriters(ctx, 1, role)
	err = t.apply(ctx, "configure-"+role+".yaml")
	if err == nil {
		err = t.followRollout(watching, r, seen, began)
	}
	stop()
	if err := errors.Join(err, ws.stop(), g.Wait()); err != nil {
		return err
	}
	saved, err := t.nothingLost(ctx, ws)
	if err != nil {
		return err
	}
	facts := append(r.facts(), saved, r.safe())
	facts = append(facts, t.onMachines(nodes, role)...)
	if role == "master" {
		facts = append(facts, expect(slices.Equal(slices.Sorted(slices.Values(r.holders)), names(nodes)),
			"the permit held once by each of "+strings.Join(names(nodes), ", "), "by %s", strings.Join(r.holders, ", ")))
	}
	runs, err := t.services(ctx, nodes)
	if err != nil {
		return err
	}
	t.saw(
		"/etc/tour.conf and tour.service are on all %d after %.1f s; %d writes were acknowledged during that, the slowest after %d ms", len(nodes), time.Since(began).Seconds(),
		len(ws.acknowledged()), ws.slowest().Milliseconds())
	if err := t.check(append(facts, expect(len(runs) == len(nodes), "tour.service on each machine", "on %s",
		strings.Join(runs, ", ")))...); err != nil {
		return err
	}
	return t.removeSets(ctx, tourLabel+"="+t.run)
}

// followRollout prints what is seen until all nodes have been through and the pool says so.
func (t *tour) followRollout(ctx context.Context, r *rollout, seen <-chan observation, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, configuredWithin)
	defer cancel()
	shown := false
	for !r.over() {
		select {
		case o := <-seen:
			for _, line := range r.add(o) {
				t.moment(time.Since(began), line)
			}
		case <-ctx.Done():
			return mismatch{{
				expected: "all nodes with their new configuration, within " + configuredWithin.String(),
				seen:     fmt.Sprint(r.facts()),
			}}
		}
		if len(r.holders) > 0 && !shown {
			shown = true
			if err := t.showPermit(ctx, r.holders[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// showPermit has the quorum shown while a machine may disrupt it.
func (t *tour) showPermit(ctx context.Context, holder string) error {
	out, err := t.windlass(ctx, "quorum")
	if err != nil {
		return err
	}
	t.saw("%s", linesWith(out, "Permit:"))
	return t.check(expect(strings.Contains(linesWith(out, "Permit:"), holder), "`windlass quorum` names "+holder+
		" as the one who has the permit", "%s", out))
}

// file is where a file of a machine is on this one.
func (t *tour) file(machine string, elem ...string) string {
	return filepath.Join(append([]string{t.cluster.dir, "services", "provider-local", "machines", machine, "root"},
		elem...)...)
}

// onMachines checks that the file of the tour is on each machine.
func (t *tour) onMachines(nodes []*nodev1.Node, role string) []fact {
	var facts []fact
	for _, name := range names(nodes) {
		raw, err := os.ReadFile(t.file(name, "etc", "tour.conf"))
		facts = append(facts, expect(string(raw) == "written for a "+role+"\n", "/etc/tour.conf on "+name, "%q, %v", raw,
			err))
	}
	return facts
}

// services returns the machines on which the service of the tour runs, in order.
func (t *tour) services(ctx context.Context, nodes []*nodev1.Node) ([]string, error) {
	p, err := t.listProcesses(ctx)
	var out []string
	for _, name := range names(nodes) {
		if alive(p.pids[machineProcess(name, "unit-tour.service")]) {
			out = append(out, name)
		}
	}
	return out, err
}

// standing returns what there is of the tour on any machine.
func (t *tour) standing(ctx context.Context) ([]string, error) {
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	out, err := t.services(ctx, nodes)
	for _, name := range names(nodes) {
		if _, err := os.Stat(t.file(name, "etc", "tour.conf")); err == nil {
			out = append(out, "/etc/tour.conf on "+name)
		}
	}
	return out, err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
