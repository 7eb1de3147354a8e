package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// goal is a state of an object that is waited for. met is called with the object as it is, nil if there is none, each time that it changes.
type goal struct {
	kind            client.Kind
	namespace, name string
	what            string // how an error names it: "condition", "deletion"
	met             func(resource.Object) (bool, error)
	reason          func(ctx context.Context, o resource.Object) string // why it is not met, for people
}

func (g goal) String() string { return g.kind.GetPlural() + "/" + g.name }

var errMet = errors.New("met")

// await waits until a goal is met or ctx ends, and says on stderr what it waits for.
func (e *env) await(ctx context.Context, c *client.Client, g goal) error {
	n := newNotice(e.err, g.kind.GetSingular()+" "+g.name)
	defer n.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var seen lastSeen
	done := make(chan struct{})
	go func() {
		defer close(done)
		tell(ctx, n, g, &seen)
	}()
	err := follow(ctx, c, g, &seen)
	cancel()
	<-done
	return err
}

// lastSeen is the object as it was seen last.
type lastSeen struct {
	mu     sync.Mutex
	object resource.Object
}

func (l *lastSeen) set(o resource.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.object = o
}

func (l *lastSeen) get() resource.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.object
}

// tell says what a goal waits for until ctx ends.
func tell(ctx context.Context, n *notice, g goal, seen *lastSeen) {
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

// follow looks at the object of a goal until it is met.
func follow(ctx context.Context, c *client.Client, g goal, seen *lastSeen) error {
	s := client.Selection{Namespace: g.namespace, Fields: "metadata.name=" + g.name}
	var now resource.Object
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

// holdsUp says why an object that is being deleted is still there.
func holdsUp(c *client.Client) func(context.Context, resource.Object) string {
	return func(ctx context.Context, o resource.Object) string {
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

// machineWaits returns what a machine waits for, in one line; empty if that is nothing, or nobody can tell.
func machineWaits(ctx context.Context, c *client.Client, m *machinev1.Machine) string {
	p, err := machinev1.NewMachineServiceClient(c.Conn()).PlanMachine(ctx, &machinev1.PlanMachineRequest{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(),
	})
	if err != nil || p.GetWaitsFor() == "" {
		return ""
	}
	return withProgress(ctx, c, m, p.GetWaitsFor())
}

// withProgress adds to what a machine waits for what the owners of its hooks say about their work.
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
