// Package describe makes the command describe, which prints one object with its events and what it waits for.
package describe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// New returns the command describe.
func New(e *session.Env) *cobra.Command {
	var s target.Selection
	var noEvents bool
	cmd := &cobra.Command{
		Use:   "describe TYPE [NAME... | PREFIX | -l SELECTOR] | TYPE/NAME...",
		Short: "Show the details of objects, what they wait for, and their events",
		Example: `  windlass describe machine a
  windlass describe node/b machineset/workers`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return describe(cmd.Context(), e, args, s, !noEvents)
		},
	}
	s.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&noEvents, "no-events", false, "do not show the objects' events")
	return cmd
}

func describe(ctx context.Context, e *session.Env, args []string, s target.Selection, events bool) error {
	groups, err := target.Parse(ctx, e, args)
	if err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		var failed failure.List
		count := 0
		for _, g := range groups {
			list, err := find(ctx, e, c, g, s)
			failed.Add(err)
			for _, t := range list {
				if count++; count > 1 {
					fmt.Fprint(e.Out, "\n\n")
				}
				d := &describer{ctx: ctx, client: c, out: e.Out, Item: t}
				d.describe(events)
			}
		}
		if count == 0 && len(failed) == 0 {
			fmt.Fprintln(e.Err, printer.Nothing(e, groups, s))
		}
		return failed.Err()
	})
}

// find reads the objects of a group. A name without an object is used as a prefix.
func find(ctx context.Context, e *session.Env, c *client.Client, g target.Group, s target.Selection) (
	[]target.Item, error,
) {
	if len(g.Names) > 0 && s.Selects() {
		return nil, errors.New("name cannot be provided when a selector is specified")
	}
	if len(g.Names) == 0 {
		return target.Read(ctx, e, c, g, s)
	}
	var out []target.Item
	var failed failure.List
	for _, name := range g.Names {
		list, err := target.Read(ctx, e, c, target.Group{Kind: g.Kind, Names: []string{name}}, s)
		if failure.IsNotFound(err) {
			if like, e2 := withPrefix(ctx, e, c, g.Kind, name); e2 == nil && len(like) > 0 {
				list, err = like, nil
			}
		}
		failed.Add(err)
		out = append(out, list...)
	}
	return out, failed.Err()
}

func withPrefix(ctx context.Context, e *session.Env, c *client.Client, k client.Kind, prefix string) ([]target.Item,
	error,
) {
	list, _, err := c.List(ctx, k, target.Scope(e, k, target.Selection{}))
	var out []target.Item
	for _, o := range list {
		if strings.HasPrefix(o.GetMetadata().GetName(), prefix) {
			out = append(out, target.Item{Kind: k, Object: o})
		}
	}
	return out, err
}

// describer prints one object in readable form.
type describer struct {
	ctx    context.Context
	client *client.Client
	out    io.Writer
	target.Item
}

// labelWidth is the column at which values start.
const labelWidth = 20

// line prints a label and a value; further lines of the value are aligned with the first.
func (d *describer) line(label, value string) {
	for i, text := range strings.Split(value, "\n") {
		head := ""
		if i == 0 {
			head = label + ":"
		}
		fmt.Fprintln(d.out, strings.TrimRight(fmt.Sprintf("%-*s%s", labelWidth, head, text), " "))
	}
}

// linef is line with fmt.Sprintf.
func (d *describer) linef(label, text string, args ...any) { d.line(label, fmt.Sprintf(text, args...)) }

// optional is line, but prints nothing for an empty value.
func (d *describer) optional(label, value string) {
	if value != "" {
		d.line(label, value)
	}
}

func (d *describer) heading(text string) { fmt.Fprintln(d.out, text+":") }

func (d *describer) describe(events bool) {
	d.identity()
	if f := sections(d.Object); f != nil {
		f(d)
	} else {
		d.freely()
	}
	if events {
		d.events()
	}
}

// sections returns the describe function for the object's kind, nil if the kind has none.
func sections(o object.Object) func(*describer) {
	switch o.(type) {
	case machine:
		return (*describer).machine
	case machineSet:
		return (*describer).machineSet
	case healthCheck:
		return (*describer).healthCheck
	case machineAutoscaler:
		return (*describer).machineAutoscaler
	case clusterAutoscaler:
		return (*describer).clusterAutoscaler
	case controlPlane:
		return (*describer).controlPlane
	case node:
		return (*describer).node
	case drain:
		return (*describer).drain
	case hookTask:
		return (*describer).hookTask
	case hookOwner:
		return (*describer).hookOwner
	case pod:
		return (*describer).pod
	case configMap:
		return (*describer).configMap
	case secret:
		return (*describer).secret
	case service:
		return (*describer).service
	case clusterVersionObject:
		return (*describer).clusterVersion
	}
	return nil
}
