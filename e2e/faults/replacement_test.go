package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const quorumHook = "EtcdQuorumOperator"

// step is how far the replacement of a control-plane machine has come.
type step int

const (
	requested  step = iota // the old machine is marked
	created                // the new machine is there
	learning               // its member follows
	voting                 // its member votes
	left                   // the old member is out of the cluster
	unhooked               // the quorum's hook is off the old machine
	drained                // the old node is drained, and the last hook's owner has its task
	terminated             // the old instance is gone
	ended                  // the old machine is gone
	stepCount
)

// String names a step as the table of results does.
func (s step) String() string {
	return [...]string{
		"requested", "created", "learning", "voting", "left", "unhooked", "drained", "terminated",
		"ended",
	}[s]
}

// replacement follows the replacement of one control-plane machine from outside: each look checks that nothing came
// before its time.
type replacement struct {
	c       *harness.Cluster
	old     string
	before  []string // control-plane machines before
	members *harness.Members
	within  time.Duration // it may take
	// the test kills the old member; one that stays down for long is removed before its replacement votes
	oldDies bool

	mu      sync.Mutex
	new     string
	urls    []string
	step    step
	reached map[step]time.Time
	faults  []string // what came too early
}

func follow(t *testing.T, c *harness.Cluster, old string) *replacement {
	t.Helper()
	root, err := c.Root()
	if err != nil {
		t.Fatal(err)
	}
	r := &replacement{c: c, old: old, members: root, within: patience, reached: map[step]time.Time{}, step: -1}
	for _, m := range c.MustMachines("master") {
		r.before = append(r.before, m.GetMetadata().GetName())
	}
	c.Wait(patience, "etcd's addresses", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		r.urls = q.GetEndpoints()
		return err == nil && len(r.urls) > 0, "", err
	})
	t.Cleanup(root.Close)
	return r
}

// view is one look. What comes late in a replacement is read first: so if something late is seen done, everything
// before it must be seen done, too.
type view struct {
	instance bool               // the old instance is there; read before the machine
	remains  bool               // the same, read after the machine
	machine  *machinev1.Machine // the old machine; nil if it is gone
	masters  []*machinev1.Machine
	members  []*etcdserverpb.Member
}

func (r *replacement) look(ctx context.Context) (view, error) {
	var v view
	var err error
	record := r.c.Dir("services", "provider-local", "machines", r.old, "instance.json")
	v.instance = !gone(record)
	if v.masters, err = r.c.Machines(ctx, "master"); err != nil {
		return v, err
	}
	v.remains = !gone(record)
	for _, m := range v.masters {
		if m.GetMetadata().GetName() == r.old {
			v.machine = m
		}
	}
	v.members, err = r.members.List(ctx, r.urls)
	if err == nil {
		r.urls = urls(v.members)
	}
	return v, err
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func urls(list []*etcdserverpb.Member) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.GetClientURLs()...)
	}
	return out
}

// advance looks once and returns the steps that were reached since the last look.
func (r *replacement) advance(ctx context.Context) ([]step, error) {
	v, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	done := r.done(v)
	r.mu.Lock()
	defer r.mu.Unlock()
	var fresh []step
	for s := range stepCount {
		if !done[s] || !r.reached[s].IsZero() {
			continue
		}
		r.reached[s] = time.Now()
		r.step = max(r.step, s)
		fresh = append(fresh, s)
	}
	r.order(v, done)
	return fresh, nil
}

// done says which steps a look shows as done.
func (r *replacement) done(v view) [stepCount]bool {
	var done [stepCount]bool
	for _, m := range v.masters {
		if name := m.GetMetadata().GetName(); !slices.Contains(r.before, name) {
			done[created] = true
			r.mu.Lock()
			r.new = name
			r.mu.Unlock()
		}
	}
	member, learns := memberOn(v.members, r.new, v.masters)
	done[requested] = v.machine == nil || v.machine.GetMetadata().GetDeletionTimestamp() != nil
	done[learning] = member
	done[voting] = member && !learns
	old, _ := memberOn(v.members, r.old, v.masters)
	done[left] = !old
	done[unhooked] = v.machine == nil || !hooked(v.machine.GetSpec().GetLifecycleHooks().GetPreDrain(), quorumHook)
	done[drained] = v.machine == nil || isTrue(v.machine, "Drained")
	done[terminated] = !v.instance
	done[ended] = v.machine == nil
	return done
}

// memberOn finds the member of a machine by its name, or by its address before it has said its name.
func memberOn(list []*etcdserverpb.Member, name string, machines []*machinev1.Machine) (there, learner bool) {
	if name == "" {
		return false, false
	}
	for _, m := range list {
		if m.GetName() == name || m.GetName() == "" && addressOf(machines, name) != "" &&
			strings.Contains(strings.Join(m.GetPeerURLs(), " "), "//"+addressOf(machines, name)+":") {
			return true, m.GetIsLearner()
		}
	}
	return false, false
}

func addressOf(machines []*machinev1.Machine, name string) string {
	for _, m := range machines {
		for _, a := range m.GetStatus().GetAddresses() {
			if m.GetMetadata().GetName() == name && a.GetType() == "InternalIP" {
				return a.GetAddress()
			}
		}
	}
	return ""
}

func hooked(hooks []*machinev1.LifecycleHook, name string) bool {
	return slices.ContainsFunc(hooks, func(h *machinev1.LifecycleHook) bool { return h.GetName() == name })
}

func isTrue(m *machinev1.Machine, condition string) bool {
	for _, c := range m.GetStatus().GetConditions() {
		if c.GetType() == condition {
			return c.GetStatus() == "True"
		}
	}
	return false
}

// order notes what came before its time. The lock is held.
func (r *replacement) order(v view, done [stepCount]bool) {
	early := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if !slices.Contains(r.faults, text) {
			r.faults = append(r.faults, text)
		}
	}
	voters := 0
	for _, m := range v.members {
		if !m.GetIsLearner() {
			voters++
		}
	}
	stay := len(r.before)
	if r.oldDies && done[left] {
		stay--
	}
	if voters < stay {
		early("there are %d voters, fewer than %d: one left before its replacement voted", voters, stay)
	}
	if v.machine == nil {
		if v.remains {
			early("the machine went before its instance")
		}
		return
	}
	if done[unhooked] && !done[left] {
		early("the quorum's hook went before the member left")
	}
	if done[drained] && len(v.machine.GetSpec().GetLifecycleHooks().GetPreDrain()) > 0 {
		early("the node was drained before the preDrain hooks were gone")
	}
	if done[terminated] && (!done[drained] || len(v.machine.GetSpec().GetLifecycleHooks().GetPreTerminate()) > 0) {
		early("the instance went before the drain and the preTerminate hooks were done")
	}
}

// run follows the replacement to its end and calls at with each step that is reached. The test fails if it does not end
// in time.
func (r *replacement) run(t *testing.T, at func(step)) {
	t.Helper()
	r.c.Wait(r.within, "the replacement of "+r.old, func(ctx context.Context) (bool, string, error) {
		fresh, err := r.advance(ctx)
		for _, s := range fresh {
			at(s)
		}
		return r.has(ended) && r.has(voting), fmt.Sprintf("it is at %q", r.at()), err
	})
	for _, f := range r.faults {
		t.Errorf("replacement of %s: %s", r.old, f)
	}
}

func (r *replacement) has(s step) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.reached[s].IsZero()
}

func (r *replacement) at() step {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.step, 0)
}

// took returns how long the replacement took.
func (r *replacement) took() time.Duration { return r.reached[ended].Sub(r.reached[requested]) }

// process returns the name of a process of the cluster as the replacement has it: "agent of the old machine" and so on;
// the names of programs are themselves.
func (r *replacement) process(role string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	other := r.before[slices.IndexFunc(r.before, func(n string) bool { return n != r.old })]
	machines := map[string]string{"old": r.old, "new": r.new, "other": other}
	if which, ok := strings.CutPrefix(role, "node-agent, "); ok {
		return harness.Agent(machines[which])
	}
	if which, ok := strings.CutPrefix(role, "etcd-member, "); ok {
		return harness.Member(machines[which])
	}
	return role
}

// isGone reports whether a call says that there is no such object.
func isGone(err error) bool { return status.Code(err) == codes.NotFound }
