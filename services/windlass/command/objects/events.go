package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/event"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
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

// NewEvents returns the command events.
func NewEvents(e *session.Env) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List events, the newest last",
		Long:  "List events, the newest last, in all namespaces or in the namespace of -n.",
		Example: `  windlass events
  windlass events --for machine/a --watch
  windlass events --types=Warning`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return events(cmd.Context(), e, f) },
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

func events(ctx context.Context, e *session.Env, f eventFlags) error {
	form, err := printer.Parse(f.output, printer.Wide, printer.JSON, printer.YAML, printer.Name, printer.JSONPath)
	if err != nil {
		return err
	}
	k, err := client.FindKind("events")
	if err != nil {
		return err
	}
	s, err := eventScope(ctx, e, f)
	if err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		list, revision, err := c.List(ctx, k, s)
		if err != nil {
			return err
		}
		events := event.In(list, f.types...)
		event.Sort(events)
		if len(events) == 0 && !f.watch && (form.Word == printer.Table || form.Word == printer.Wide) {
			fmt.Fprintln(e.Err, "No events found")
			return nil
		}
		w := &watchPrinter{
			out: e.Out, kind: k, form: form, headed: f.noHeaders, table: table.New(e.Out),
			options: table.Options{Wide: form.Word == printer.Wide, Namespace: f.everyone},
		}
		if !f.watch && form.Word != printer.Table && form.Word != printer.Wide {
			return form.Write(e.Out, eventTargets(k, events), false)
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
			events := event.In(changed, f.types...)
			event.Sort(events)
			return w.print(eventTargets(k, events)...)
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// eventScope returns the selection of events for the flags.
func eventScope(ctx context.Context, e *session.Env, f eventFlags) (client.Selection, error) {
	s := client.Selection{Namespace: e.Namespace}
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
	k, err := e.FindKind(ctx, word)
	if err != nil {
		return s, err
	}
	s.Fields = fmt.Sprintf("involvedObject.kind=%s,involvedObject.name=%s", k.GetKind(), name)
	return s, nil
}

func eventTargets(k client.Kind, list []*eventv1.Event) []target.Item {
	out := make([]target.Item, len(list))
	for i, ev := range list {
		out[i] = target.Item{Kind: k, Object: ev}
	}
	return out
}
