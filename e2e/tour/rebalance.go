package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

const (
	// spareZone is a failure domain that no machine of a cluster is in.
	spareZone = "tour-rack"
	zoneLabel = "machine.openshift.io/zone"
	domainsOf = "{.spec.template.machines_v1beta1_machine_openshift_io.failureDomains}"
)

// rebalance replaces one failure domain of the control plane by another one, and takes that back.
func (t *tour) rebalance(ctx context.Context) error {
	text, err := t.windlass(ctx, "get", "controlplanemachineset", "cluster", "-o", "jsonpath="+domainsOf)
	if err != nil {
		return err
	}
	var domains map[string]any
	if err := json.Unmarshal([]byte(text), &domains); err != nil {
		return err
	}
	list, _ := domains["local"].([]any)
	if len(list) != controlPlaneSize {
		t.saw("the control plane of this cluster has no failure domain for each machine: left out")
		return nil
	}
	last := list[len(list)-1].(map[string]any)
	zone, spare := fmt.Sprint(last["zone"]), spareZone
	if zone == spare {
		spare += "-2" // an interrupted tour left it there
	}
	changed := map[string]any{"platform": domains["platform"], "local": append(slices.Clone(list[:len(list)-1]),
		map[string]any{"zone": spare})}
	if err := t.move(ctx, changed, zone, spare); err != nil {
		return err
	}
	if err := t.move(ctx, domains, spare, zone); err != nil {
		return err
	}
	t.paragraph(
		`A changed failure domain moves the machine that is in it and no other: a new machine in the new domain, its vote, and only then the old machine goes. The answer ` +
			`to the change names the machines that move.`)
	return nil
}

// controlPlaneSize is how many control-plane machines a cluster of the tour has.
const controlPlaneSize = 3

// move changes the failure domains and waits until the one machine that was in a zone is in another one.
func (t *tour) move(ctx context.Context, domains map[string]any, from, to string) error {
	before, err := t.cluster.listMachines(ctx, "master")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(before, func(m *machinev1.Machine) bool {
		return m.GetMetadata().GetLabels()[zoneLabel] == from
	})
	if i < 0 {
		return mismatch{{expected: "a control-plane machine in " + from, seen: strings.Join(names(before), ", ")}}
	}
	old := before[i].GetMetadata().GetName()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
		"machines_v1beta1_machine_openshift_io": map[string]any{"failureDomains": domains},
	}}})
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := t.windlass(ctx, "patch", "controlplanemachineset", "cluster", "--type=merge", "-p",
		string(patch)); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "plan", "controlplanemachineset")
	if err != nil {
		return err
	}
	t.saw("%s", linesWith(out, "does not match the template"))
	if err := t.check(mentions("windlass plan controlplanemachineset", out, old, to)); err != nil {
		return err
	}
	var now []*machinev1.Machine
	err = within(ctx, settled, old+" replaced by a machine in "+to, func(ctx context.Context) (bool, string, error) {
		if now, err = t.cluster.listMachines(ctx, "master"); err != nil {
			return false, "", err
		}
		if slices.Contains(names(now), old) || len(now) != len(before) {
			return false, strings.Join(names(now), ", "), nil
		}
		return t.ready(ctx)
	})
	if err != nil {
		return err
	}
	made := slices.DeleteFunc(slices.Clone(now), func(m *machinev1.Machine) bool {
		return slices.Contains(names(before), m.GetMetadata().GetName())
	})
	t.moment(time.Since(began), fmt.Sprintf("%s in %s is in the place of %s in %s", strings.Join(names(made), ", "), to,
		old,
		from))
	return t.check(expect(len(made) == 1 && made[0].GetMetadata().GetLabels()[zoneLabel] == to, "one new machine, in "+to,
		"%s", strings.Join(names(made), ", ")))
}
