// Package waiting waits until an object reaches a state, and prints what it waits for.
package waiting

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/hooktask"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// Goal is a state of an object to wait for. Met is called with the current object on every change, nil if it does not
// exist.
type Goal struct {
	Kind            client.Kind
	Namespace, Name string
	What            string // name in errors: "condition", "deletion"
	Met             func(object.Object) (bool, error)
	Reason          func(ctx context.Context, o object.Object) string // why the goal is not met, for the user
}

func (g Goal) String() string { return g.Kind.GetPlural() + "/" + g.Name }

var errMet = errors.New("met")

// Await waits until a goal is met or ctx ends, and prints on stderr what it waits for.
func Await(ctx context.Context, e *session.Env, c *client.Client, g Goal) error {
	n := newNotice(e.Err, g.Kind.GetSingular()+" "+g.Name)
	defer n.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var seen lastSeen
	done := make(chan struct{})
	go func() {
		defer close(done)
		report(ctx, n, g, &seen)
	}()
	err := follow(ctx, c, g, &seen)
	cancel()
	<-done
	return err
}

// lastSeen holds the last observed version of an object. It is safe for concurrent use.
type lastSeen struct {
	mu     sync.Mutex
	object object.Object
}

func (l *lastSeen) set(o object.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.object = o
}

func (l *lastSeen) get() object.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.object
}

// report prints what a goal waits for until ctx ends.
func report(ctx context.Context, n *notice, g Goal, seen *lastSeen) {
	tick := time.NewTicker(sayAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !n.due() {
			continue
		}
		what := ""
		if g.Reason != nil {
			what = g.Reason(ctx, seen.get())
		}
		if ctx.Err() == nil {
			n.say(what)
		}
	}
}

// follow watches the object of a goal until the goal is met.
func follow(ctx context.Context, c *client.Client, g Goal, seen *lastSeen) error {
	s := client.Selection{Namespace: g.Namespace, Fields: "metadata.name=" + g.Name}
	var now object.Object
	check := func() error {
		seen.set(now)
		met, err := g.Met(now)
		if met && err == nil {
			return errMet
		}
		return err
	}
	err := c.Follow(ctx, g.Kind, s, "", func(ev client.Event) error {
		for _, change := range ev.Events {
			now = change.Object
			if change.Type == resource.Deleted {
				now = nil
			}
			if err := check(); err != nil {
				return err
			}
		}
		if ev.Bookmark && now == nil {
			return check()
		}
		return nil
	})
	switch {
	case errors.Is(err, errMet):
		return nil
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("timed out waiting for the %s on %s", g.What, g)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted while waiting for the %s on %s; what was requested is not undone", g.What, g)
	}
	return err
}

// Deletion returns a function that reports why an object being deleted still exists.
func Deletion(c *client.Client) func(context.Context, object.Object) string {
	return func(ctx context.Context, o object.Object) string {
		if o == nil {
			return ""
		}
		if m, ok := o.(*machinev1.Machine); ok {
			if waits := machineWaits(ctx, c, m); waits != "" {
				return waits
			}
		}
		if f := o.GetMetadata().GetFinalizers(); len(f) > 0 {
			return "finalizers " + strings.Join(f, ", ")
		}
		return ""
	}
}

// machineWaits returns what a machine waits for, in one line; empty if it waits for nothing or the plan cannot be read.
func machineWaits(ctx context.Context, c *client.Client, m *machinev1.Machine) string {
	p, err := machinev1.NewMachineServiceClient(c.Conn()).PlanMachine(ctx, &machinev1.PlanMachineRequest{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(),
	})
	if err != nil || p.GetWaitsFor() == "" {
		return ""
	}
	return WithProgress(ctx, c, m, p.GetWaitsFor())
}

// WithProgress adds the messages of the hooks' owners to what a machine waits for.
func WithProgress(ctx context.Context, c *client.Client, m *machinev1.Machine, waits string) string {
	tasks, err := hooktask.Of(ctx, c, m)
	if err != nil {
		return waits
	}
	return withProgress(waits, tasks)
}

// withProgress adds what the tasks of hooks report. A task that was never begun only repeats its owner.
func withProgress(waits string, tasks []*hookv1.HookTask) string {
	for _, t := range tasks {
		s := t.GetStatus()
		begun := s.GetPhase() != "Pending" || s.GetAttempts() > 0 || s.GetWebhook().GetAttempts() > 0
		if begun && s.GetMessage() != "" && strings.Contains(waits, t.GetSpec().GetHookName()) {
			waits += fmt.Sprintf(" (%s: %s)", t.GetSpec().GetHookName(), s.GetMessage())
		}
	}
	return waits
}
