package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// goal is a state of an object to wait for. met is called with the current object on every change, nil if it does not
// exist.
type goal struct {
	kind            client.Kind
	namespace, name string
	what            string // name in errors: "condition", "deletion"
	met             func(object.Object) (bool, error)
	reason          func(ctx context.Context, o object.Object) string // why the goal is not met, for the user
}

func (g goal) String() string { return g.kind.GetPlural() + "/" + g.name }

var errMet = errors.New("met")

// await waits until a goal is met or ctx ends, and prints on stderr what it waits for.
func (e *env) await(ctx context.Context, c *client.Client, g goal) error {
	n := newNotice(e.err, g.kind.GetSingular()+" "+g.name)
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
func report(ctx context.Context, n *notice, g goal, seen *lastSeen) {
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
		if g.reason != nil {
			what = g.reason(ctx, seen.get())
		}
		if ctx.Err() == nil {
			n.say(what)
		}
	}
}

// follow watches the object of a goal until the goal is met.
func follow(ctx context.Context, c *client.Client, g goal, seen *lastSeen) error {
	s := client.Selection{Namespace: g.namespace, Fields: "metadata.name=" + g.name}
	var now object.Object
	check := func() error {
		seen.set(now)
		met, err := g.met(now)
		if met && err == nil {
			return errMet
		}
		return err
	}
	err := c.Follow(ctx, g.kind, s, "", func(ev client.Event) error {
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
		return fmt.Errorf("timed out waiting for the %s on %s", g.what, g)
	}
	return err
}

// holdsUp returns a function that reports why an object being deleted still exists.
func holdsUp(c *client.Client) func(context.Context, object.Object) string {
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
	return withProgress(ctx, c, m, p.GetWaitsFor())
}

// withProgress adds the messages of the hooks' owners to what a machine waits for.
func withProgress(ctx context.Context, c *client.Client, m *machinev1.Machine, waits string) string {
	tasks, err := tasksOf(ctx, c, m)
	if err != nil {
		return waits
	}
	for _, t := range tasks {
		if said := t.GetStatus().GetMessage(); said != "" && strings.Contains(waits, t.GetSpec().GetHookName()) {
			waits += fmt.Sprintf(" (%s: %s)", t.GetSpec().GetHookName(), said)
		}
	}
	return waits
}
