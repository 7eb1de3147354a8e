package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

func newDescribe(e *env) *cobra.Command {
	var s selection
	var noEvents bool
	cmd := &cobra.Command{
		Use:   "describe TYPE [NAME... | PREFIX | -l SELECTOR] | TYPE/NAME...",
		Short: "Show the details of objects, what they wait for, and their events",
		Example: `  windlass describe machine a
  windlass describe node/b machineset/workers`,
		ValidArgsFunction: e.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.describe(cmd.Context(), args, s, !noEvents)
		},
	}
	s.flags(cmd.Flags())
	cmd.Flags().BoolVar(&noEvents, "no-events", false, "do not show the objects' events")
	return cmd
}

func (e *env) describe(ctx context.Context, args []string, s selection, events bool) error {
	groups, err := parseGroups(args)
	if err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		var failed failures
		count := 0
		for _, g := range groups {
			list, err := e.findForDescribe(ctx, c, g, s)
			failed.add(err)
			for _, t := range list {
				if count++; count > 1 {
					fmt.Fprint(e.out, "\n\n")
				}
				d := &describer{ctx: ctx, client: c, out: e.out, target: t}
				d.describe(events)
			}
		}
		if count == 0 && len(failed) == 0 {
			fmt.Fprintln(e.err, e.nothing(groups, s))
		}
		return failed.err()
	})
}

// findForDescribe reads the objects of a group. A name without an object is used as a prefix.
func (e *env) findForDescribe(ctx context.Context, c *client.Client, g group, s selection) ([]target, error) {
	if len(g.names) > 0 && s.selects() {
		return nil, errors.New("name cannot be provided when a selector is specified")
	}
	if len(g.names) == 0 {
		return e.read(ctx, c, g, s)
	}
	var out []target
	var failed failures
	for _, name := range g.names {
		list, err := e.read(ctx, c, group{g.kind, []string{name}}, s)
		if isNotFound(err) {
			if like, e2 := e.withPrefix(ctx, c, g.kind, name); e2 == nil && len(like) > 0 {
				list, err = like, nil
			}
		}
		failed.add(err)
		out = append(out, list...)
	}
	return out, failed.err()
}

func (e *env) withPrefix(ctx context.Context, c *client.Client, k client.Kind, prefix string) ([]target, error) {
	list, _, err := c.List(ctx, k, e.scope(k, selection{}))
	var out []target
	for _, o := range list {
		if strings.HasPrefix(o.GetMetadata().GetName(), prefix) {
			out = append(out, target{k, o})
		}
	}
	return out, err
}

// describer prints one object in readable form.
type describer struct {
	ctx    context.Context
	client *client.Client
	out    io.Writer
	target
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
	if f := sections(d.object); f != nil {
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
	case clusterVersionObject:
		return (*describer).clusterVersion
	}
	return nil
}
