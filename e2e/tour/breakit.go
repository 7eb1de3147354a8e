package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// state is what must be the same after everything that was broken has come back.
type state struct {
	machines, nodes, boots, members []string
}

func (t *tour) state(ctx context.Context) (state, error) {
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return state{}, err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return state{}, err
	}
	q, err := t.cluster.quorum(ctx)
	s := state{machines: uids(machines), nodes: uids(nodes)}
	for _, n := range nodes {
		s.boots = append(s.boots, n.GetMetadata().GetName()+": "+n.GetStatus().GetNodeInfo().GetBootId())
	}
	for _, m := range q.GetMembers() {
		s.members = append(s.members, m.GetName()+": "+m.GetId())
	}
	slices.Sort(s.boots)
	slices.Sort(s.members)
	return s, err
}

// same says that nothing was replaced and nothing rebooted.
func (s state) same(now state) []fact {
	says := func(what string, before, after []string) fact {
		return expect(slices.Equal(before, after), what+" as before: "+strings.Join(before, ", "), "%s",
			strings.Join(after, ", "))
	}
	return []fact{
		says("machines", s.machines, now.machines), says("nodes", s.nodes, now.nodes),
		says("boots", s.boots, now.boots), says("members", s.members, now.members),
	}
}

// breakIt kills one program of each sort while writes go on.
func (t *tour) breakIt(ctx context.Context) error {
	before, err := t.state(ctx)
	if err != nil {
		return err
	}
	ws := t.startWriters(ctx, 1, "break")
	for _, kill := range []func(context.Context) error{t.killService, t.killAgent, t.killMember, t.killSupervisor} {
		if err = kill(ctx); err != nil {
			break
		}
	}
	if errWrite := ws.stop(); err == nil {
		err = errWrite
	}
	if err != nil {
		return err
	}
	saved, err := t.nothingLost(ctx, ws)
	if err != nil {
		return err
	}
	after, err := t.state(ctx)
	if err != nil {
		return err
	}
	if err := t.check(append(before.same(after), saved)...); err != nil {
		return err
	}
	t.paragraph(
		`Whatever died was started again by what watches over it: services by the supervisor, agents by the provider, members by their agents. `+
			`None of them is needed for the others to run on, not even the supervisor, and no machine was replaced or rebooted. %d writes were `+
			`acknowledged during that, the slowest after %d ms, and all are there.`, len(ws.acknowledged()),
		ws.slowest().Milliseconds())
	return t.removeSets(ctx, tourLabel+"="+t.run)
}

// answers is how long something that was killed may take to do its work again.
const answers = 20 * time.Second

func (t *tour) killService(ctx context.Context) error {
	const service = "hook-broker"
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	key := serviceProcess(service)
	if err := t.kill(key, p.pids[key]); err != nil {
		return err
	}
	pid, took, err := t.comesBack(ctx, key, p.pids[key])
	if err != nil {
		return err
	}
	began := time.Now()
	err = within(ctx, answers, "`windlass get hooktasks` answers", func(ctx context.Context) (bool, string, error) {
		_, err := t.shell.output(ctx, "windlass", "get", "hooktasks")
		return err == nil, "", err
	})
	if err != nil {
		return err
	}
	t.saw("the supervisor started it again: pid %d after %.2f s; it answers %.2f s later", pid, took.Seconds(),
		time.Since(began).Seconds())
	return t.onlyChanged(ctx, p, key)
}

// onlyChanged checks that no other process than the one that was killed is another now.
func (t *tour) onlyChanged(ctx context.Context, before processes, key string) error {
	after, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	changed := before.changed(after)
	return t.check(expect(len(changed) == 1 && strings.HasPrefix(changed[0], key+":"), "no other process than "+key+
		" started again", "%s", strings.Join(changed, "; ")))
}

func (t *tour) killAgent(ctx context.Context) error {
	set, err := t.workerSet(ctx)
	if err != nil {
		return err
	}
	workers, err := t.workersOf(ctx, set)
	if err != nil {
		return err
	}
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	worker := names(workers)[0]
	key := agentProcess(worker)
	if err := t.kill(key, p.pids[key]); err != nil {
		return err
	}
	pid, took, err := t.comesBack(ctx, key, p.pids[key])
	if err != nil {
		return err
	}
	var node *nodev1.Node
	err = within(ctx, answers, "node "+worker+" Ready", func(ctx context.Context) (bool, string, error) {
		node, err = t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: worker}, patient)
		return isReady(node), fmt.Sprint(node.GetStatus().GetConditions()), err
	})
	if err != nil {
		return err
	}
	t.saw("that was the agent of %s; the provider started it again: pid %d after %.2f s; its node stayed the same", worker,
		pid, took.Seconds())
	return t.onlyChanged(ctx, p, key)
}

// killMember kills a member that does not lead, when all are healthy: the others are a majority.
func (t *tour) killMember(ctx context.Context) error {
	var victim string
	err := within(ctx, settled, "a quorum at rest", func(ctx context.Context) (bool, string, error) {
		q, err := t.cluster.quorum(ctx)
		victim = follower(q)
		return atRest(q) && q.GetFailureTolerance() > 0, q.String(), err
	})
	if err != nil {
		return err
	}
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	key := memberProcess(victim)
	if err := t.kill(key, p.pids[key]); err != nil {
		return err
	}
	pid, took, err := t.comesBack(ctx, key, p.pids[key])
	if err != nil {
		return err
	}
	began := time.Now()
	err = within(ctx, answers, "all members healthy voters", func(ctx context.Context) (bool, string, error) {
		q, err := t.cluster.quorum(ctx)
		return atRest(q) && q.GetObserveTime().AsTime().After(began), q.String(), err // not what was seen before it died
	})
	if err != nil {
		return err
	}
	// The guardian's answers pass a gateway that reads nothing from etcd, as on a host whose disk does not answer for
	// seconds; others do not.
	err = within(ctx, answers, "the gateway serves", func(ctx context.Context) (bool, string, error) {
		_, err := t.cluster.listMachines(ctx, "")
		return err == nil, "", err
	})
	if err != nil {
		return err
	}
	t.saw("its agent started it again: pid %d after %.2f s; at the next look %.2f s later it is a healthy voter", pid,
		took.Seconds(), time.Since(began).Seconds())
	return t.onlyChanged(ctx, p, key)
}

// killSupervisor kills what started everything else, and has `windlass up` take everything over.
func (t *tour) killSupervisor(ctx context.Context) error {
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	if err := t.kill("supervisor", p.supervisor); err != nil {
		return err
	}
	err = within(ctx, answers, "supervisor not running", func(ctx context.Context) (bool, string, error) {
		now, err := t.listProcesses(ctx)
		return now.supervisor == 0 && !alive(p.supervisor), fmt.Sprintf("pid %d", now.supervisor), err
	})
	if err != nil {
		return err
	}
	if err := t.runsOn(ctx, p); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "up"); err != nil {
		return err
	}
	now, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	changed := p.changed(now)
	if err := t.check(expect(now.supervisor != 0 && now.supervisor != p.supervisor, "another supervisor", "pid %d",
		now.supervisor),
		expect(len(changed) == 0, "the same processes before and after", "%s", strings.Join(changed, "; "))); err != nil {
		return err
	}
	t.saw("supervisor %d has taken over all %d processes as they are", now.supervisor, len(now.pids))
	return t.killService(ctx) // which shows that the new supervisor does its work
}

// runsOn checks that the cluster lives without its supervisor.
func (t *tour) runsOn(ctx context.Context, before processes) error {
	if _, err := t.windlass(ctx, "get", "machines"); err != nil {
		return err
	}
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return err
	}
	dead := before.dead()
	if err := t.check(expect(len(dead) == 0, "every other process runs on", "dead: %s", strings.Join(dead, ", ")),
		expect(!slices.ContainsFunc(machines, notRunning), "every machine in phase Running", "%s",
			strings.Join(names(machines), ", "))); err != nil {
		return err
	}
	t.saw("all %d other processes run on, and so do the %d machines", len(before.pids), len(machines))
	return nil
}

func notRunning(m *machinev1.Machine) bool { return m.GetStatus().GetPhase() != "Running" }
