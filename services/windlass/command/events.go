package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type eventFlags struct {
	about     string
	types     []string
	everyone  bool
	watch     bool
	noHeaders bool
	output    string
}

func newEvents(e *env) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List events, the newest last",
		Long:  "List events, the newest last, in all namespaces or in the namespace of -n.",
		Example: `  windlass events
  windlass events --for machine/a --watch
  windlass events --types=Warning`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.events(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.about, "for", "", "show only events of this object, as TYPE/NAME")
	fs.StringSliceVar(&f.types, "types", nil, "show only events of these types: Normal, Warning")
	fs.BoolVarP(&f.everyone, "all-namespaces", "A", false, "also show the namespace")
	fs.BoolVarP(&f.watch, "watch", "w", false, "after listing the events, watch for new ones")
	fs.BoolVar(&f.noHeaders, "no-headers", false, "do not print headers")
	fs.StringVarP(&f.output, "output", "o", "", "wide, json, yaml, name or jsonpath=TEMPLATE")
	return cmd
}

func (e *env) events(ctx context.Context, f eventFlags) error {
	form, err := parseFormat(f.output, formatWide, formatJSON, formatYAML, formatName, formatJSONPath)
	if err != nil {
		return err
	}
	k, err := client.FindKind("events")
	if err != nil {
		return err
	}
	s, err := e.eventScope(f)
	if err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		list, revision, err := c.List(ctx, k, s)
		if err != nil {
			return err
		}
		events := f.wanted(list)
		sortEvents(events)
		if len(events) == 0 && !f.watch && (form.word == formatTable || form.word == formatWide) {
			fmt.Fprintln(e.err, "No events found")
			return nil
		}
		w := &watchPrinter{
			out: e.out, kind: k, form: form, headed: f.noHeaders, table: table.New(e.out),
			options: table.Options{Wide: form.word == formatWide, Namespace: f.everyone},
		}
		if !f.watch && form.word != formatTable && form.word != formatWide {
			return form.write(e.out, eventTargets(k, events), false)
		}
		if err := w.print(eventTargets(k, events)...); err != nil || !f.watch {
			return err
		}
		err = c.Follow(ctx, k, s, revision, func(ev client.Event) error {
			var changed []object.Object
			for _, change := range ev.Events {
				if change.Type != resource.Deleted {
					changed = append(changed, change.Object)
				}
			}
			events := f.wanted(changed)
			sortEvents(events)
			return w.print(eventTargets(k, events)...)
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// eventScope returns the selection of events for the flags.
func (e *env) eventScope(f eventFlags) (client.Selection, error) {
	s := client.Selection{Namespace: e.namespace}
	if f.everyone {
		s.Namespace = ""
	}
	for _, t := range f.types {
		if t != "Normal" && t != "Warning" {
			return s, fmt.Errorf("--types=%s: valid --types are Normal or Warning", t)
		}
	}
	if f.about == "" {
		return s, nil
	}
	word, name, ok := strings.Cut(f.about, "/")
	if !ok || name == "" {
		return s, errors.New("--for must be in resource/name form")
	}
	k, err := client.FindKind(word)
	if err != nil {
		return s, err
	}
	s.Fields = fmt.Sprintf("involvedObject.kind=%s,involvedObject.name=%s", k.GetKind(), name)
	return s, nil
}

func (f eventFlags) wanted(list []object.Object) []*eventv1.Event {
	var out []*eventv1.Event
	for _, o := range list {
		ev := o.(*eventv1.Event)
		if len(f.types) == 0 || slices.Contains(f.types, ev.GetType()) {
			out = append(out, ev)
		}
	}
	return out
}

func eventTargets(k client.Kind, list []*eventv1.Event) []target {
	out := make([]target, len(list))
	for i, ev := range list {
		out[i] = target{k, ev}
	}
	return out
}

// sortEvents sorts events by time, the newest last. Events of the same second are sorted by revision; events of one
// revision, which were written together, by their event times.
func sortEvents(list []*eventv1.Event) {
	slices.SortStableFunc(list, func(a, b *eventv1.Event) int {
		return cmp.Or(lastTime(a).Compare(lastTime(b)),
			cmp.Compare(revisionNumber(a.GetMetadata().GetResourceVersion()),
				revisionNumber(b.GetMetadata().GetResourceVersion())),
			cmp.Compare(a.GetEventTime(), b.GetEventTime()))
	})
}

func lastTime(ev *eventv1.Event) time.Time {
	if t := ev.GetLastTimestamp(); t != nil {
		return t.AsTime()
	}
	return ev.GetMetadata().GetCreationTimestamp().AsTime()
}

// eventsOf returns the events of one object, the newest last.
func eventsOf(ctx context.Context, c *client.Client, o object.Object) ([]*eventv1.Event, error) {
	k, err := client.FindKind("events")
	if err != nil {
		return nil, err
	}
	ns := cmp.Or(o.GetMetadata().GetNamespace(), "default")
	list, _,
		err := c.List(ctx, k, client.Selection{Namespace: ns, Fields: "involvedObject.uid=" + o.GetMetadata().GetUid()})
	if err != nil {
		return nil, err
	}
	out := eventFlags{}.wanted(list)
	sortEvents(out)
	return out, nil
}
