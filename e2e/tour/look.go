package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// look shows the cluster in each of the ways in which it can be read, and checks that all show the same.
func (t *tour) look(ctx context.Context) error {
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return err
	}
	if err := t.check(healthy(machines, nodes)...); err != nil {
		return err
	}
	for _, show := range []func(context.Context, []*machinev1.Machine) error{
		t.lookAtObjects, t.lookAtQuorum, t.lookByREST,
		t.lookByGRPC,
	} {
		if err := show(ctx, machines); err != nil {
			return err
		}
	}
	t.paragraph(
		`The cluster is %d machines, each with a node that is Ready. The control-plane machines carry the etcd quorum that holds the `+
			`cluster's own state; a hook on each of them keeps it from being drained before its vote is somewhere else. The command line, `+
			`curl and grpcurl talk to one address and see the same.`, len(machines))
	return nil
}

// healthy says that every machine runs and that its node is Ready.
func healthy(machines []*machinev1.Machine, nodes []*nodev1.Node) []fact {
	ready := map[string]bool{}
	for _, n := range nodes {
		ready[n.GetMetadata().GetName()] = isReady(n)
	}
	facts := []fact{expect(len(machines) >= 4, "three machines of the control plane and at least one worker", "%s",
		strings.Join(names(machines), ", "))}
	for _, m := range machines {
		name := m.GetMetadata().GetName()
		facts = append(facts,
			expect(m.GetStatus().GetPhase() == "Running", "machine "+name+" in phase Running", "phase %q",
				m.GetStatus().GetPhase()),
			expect(ready[name], "node "+name+" Ready", "it is not"))
	}
	return facts
}

// lookAtObjects asks for tables of objects.
func (t *tour) lookAtObjects(ctx context.Context, machines []*machinev1.Machine) error {
	out, err := t.windlass(ctx, "get", "machines", "-o", "wide")
	if err != nil {
		return err
	}
	t.saw("%s", narrow(out))
	if err := t.check(mentions("windlass get machines -o wide", out,
		append(names(machines), "PHASE", "PROVIDERID")...)); err != nil {
		return err
	}
	if out, err = t.windlass(ctx, "get", "nodes"); err != nil {
		return err
	}
	t.saw("%d nodes are Ready", strings.Count(out, " Ready"))
	return t.check(mentions("windlass get nodes", out, names(machines)...))
}

// lookAtQuorum asks for what is particular to Windlass.
func (t *tour) lookAtQuorum(ctx context.Context, machines []*machinev1.Machine) error {
	q, err := t.cluster.quorum(ctx)
	if err != nil {
		return err
	}
	var members []string
	for _, m := range q.GetMembers() {
		members = append(members, m.GetName())
	}
	out, err := t.windlass(ctx, "quorum")
	if err != nil {
		return err
	}
	t.saw("%d of %d voters are healthy; %s leads", q.GetHealthyVoters(), q.GetVoters(), leader(q))
	if err := t.check(mentions("windlass quorum", out, members...),
		expect(q.GetBootstrapRetired(), "the bootstrap member gone", "it is there"),
		expect(q.GetHealthyVoters() == q.GetVoters() && q.GetVoters() >= 3, "three healthy voters", "%d of %d",
			q.GetHealthyVoters(), q.GetVoters())); err != nil {
		return err
	}
	if out, err = t.windlass(ctx, "hooks"); err != nil {
		return err
	}
	t.saw("%s of clusteroperator/etcd is on each of the %d machines of the control plane", quorumHook, len(members))
	if err := t.check(mentions("windlass hooks", out, append(slices.Clone(members), quorumHook)...)); err != nil {
		return err
	}
	for _, m := range machines {
		if err := t.check(expect((m.GetMetadata().GetLabels()[roleLabel] == "master") == hasQuorumHook(m),
			quorumHook+" on the machines of the control plane and on no others", "machine %s: %v", m.GetMetadata().GetName(),
			m.GetSpec().GetLifecycleHooks())); err != nil {
			return err
		}
	}
	if out, err = t.windlass(ctx, "events"); err != nil {
		return err
	}
	t.saw("%d lines of what happened lately", strings.Count(out, "\n"))
	return nil
}

func hasQuorumHook(m *machinev1.Machine) bool {
	for _, h := range m.GetSpec().GetLifecycleHooks().GetPreDrain() {
		if h.GetName() == quorumHook {
			return true
		}
	}
	return false
}

// machineList is what REST and grpcurl print of a list of machines.
type machineList struct {
	Items []struct {
		Metadata struct{ Name, UID string }
	}
}

// lists says that a list of machines as JSON has exactly the given ones.
func lists(how, out string, machines []*machinev1.Machine) fact {
	var list machineList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return expect(false, how+" prints a list of machines as JSON", "%v in %s", err, lastLines(out, 5))
	}
	var got []string
	for _, m := range list.Items {
		got = append(got, fmt.Sprintf("%s (%s)", m.Metadata.Name, m.Metadata.UID))
	}
	slices.Sort(got)
	return expect(slices.Equal(got, uids(machines)), how+" lists "+strings.Join(uids(machines), ", "), "%s",
		strings.Join(got, ", "))
}

func (t *tour) lookByREST(ctx context.Context, machines []*machinev1.Machine) error {
	env := t.shell.line("windlass", "env")
	t.command(`eval "$(`+env+`)"`, 0, "")
	out, err := t.ask(ctx, `$CURL "$WINDLASS_URL/v1/machines"`)
	if err != nil {
		return err
	}
	t.saw("the same %d machines as JSON", len(machines))
	return t.check(lists("curl", out, machines))
}

func (t *tour) lookByGRPC(ctx context.Context, machines []*machinev1.Machine) error {
	out, err := t.ask(ctx, `$GRPCURL "$WINDLASS_SERVER" list`)
	if err != nil {
		return err
	}
	t.saw("%d services of Windlass", strings.Count(out, "windlass."))
	if err := t.check(mentions("grpcurl list", out, "windlass.machine.v1.MachineService",
		"windlass.machine.v1.MachineSetService",
		"windlass.machine.v1.ControlPlaneMachineSetService", "windlass.node.v1.NodeService", "windlass.etcd.v1.QuorumService",
		"windlass.hook.v1.HookTaskService", "windlass.event.v1.EventService")); err != nil {
		return err
	}
	out, err = t.ask(ctx, `$GRPCURL "$WINDLASS_SERVER" windlass.machine.v1.MachineService/ListMachines`)
	if err != nil {
		return err
	}
	t.saw("the same %d machines as protobuf", len(machines))
	return t.check(lists("grpcurl", out, machines))
}

// mentions says that an output has all of some words.
func mentions(command, out string, words ...string) fact {
	var missing []string
	for _, w := range words {
		if !strings.Contains(out, w) {
			missing = append(missing, w)
		}
	}
	return expect(len(missing) == 0, "`"+command+"` speaks of "+strings.Join(words, ", "), "no %s in\n%s",
		strings.Join(missing, ", "), lastLines(out, 20))
}

// narrow cuts what does not fit on a page.
func narrow(text string) string {
	const width = 110
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if r := []rune(line); len(r) > width {
			line = string(r[:width-1]) + "…"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
