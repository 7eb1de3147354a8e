// Package objects makes the commands that read and change objects of any kind: get, create, apply, replace, edit,
// patch, label, annotate, scale, delete and wait, and events, logs and exec.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type getFlags struct {
	target.Selection
	output     string
	watch      bool
	watchOnly  bool
	noHeaders  bool
	showLabels bool
	labelKeys  []string
	sortBy     string
	ignore     bool
}

// NewGet returns the command get.
func NewGet(e *session.Env) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get TYPE[,TYPE] [NAME...] | TYPE/NAME...",
		Short: "List one or many objects",
		Example: `  windlass get machines -o wide
  windlass get machines,nodes
  windlass get instances
  windlass get machine/a node/b -o yaml
  windlass get machines -l machine.openshift.io/cluster-api-machine-role=master --watch
  windlass get nodes -o jsonpath='{.items[*].metadata.name}'
  windlass get machines -o custom-columns=NAME:.metadata.name,PHASE:.status.phase`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return get(cmd.Context(), e, args, f)
		},
	}
	fs := cmd.Flags()
	f.AddFlags(fs)
	fs.StringVarP(&f.output, "output", "o", "", "wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=HEAD:PATH,…")
	fs.BoolVarP(&f.watch, "watch", "w", false, "after listing the objects, watch for changes")
	fs.BoolVar(&f.watchOnly, "watch-only", false, "watch for changes without listing the objects first")
	fs.BoolVar(&f.noHeaders, "no-headers", false, "do not print headers")
	fs.BoolVar(&f.showLabels, "show-labels", false, "show all labels in the last column")
	fs.StringSliceVarP(&f.labelKeys, "label-columns", "L", nil, "labels to show as columns")
	fs.StringVar(&f.sortBy, "sort-by", "", "field to sort by, as a path such as '.metadata.creationTimestamp'")
	fs.BoolVar(&f.ignore, "ignore-not-found", false, "exit with 0 if an object does not exist")
	return cmd
}

func get(ctx context.Context, e *session.Env, args []string, f getFlags) error {
	form, err := printer.Parse(f.output, printer.Wide, printer.JSON, printer.YAML, printer.Name, printer.JSONPath,
		printer.Columns)
	if err != nil {
		return err
	}
	form.Headless = f.noHeaders
	if ofInstances(args) {
		return e.WithClient(func(c *client.Client) error { return getInstances(ctx, e, c, args, form, f) })
	}
	groups, err := target.Parse(ctx, e, args)
	if err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		if f.watch || f.watchOnly {
			return getWatch(ctx, e, c, groups, form, f)
		}
		return getOnce(ctx, e, c, groups, form, f)
	})
}

func getOnce(ctx context.Context, e *session.Env, c *client.Client, groups []target.Group, form printer.Format,
	f getFlags,
) error {
	var failed failure.List
	found := make([][]target.Item, len(groups))
	var all []target.Item
	for i, g := range groups {
		if len(g.Names) > 0 && f.Selects() {
			return errors.New("name cannot be provided when a selector is specified")
		}
		list, err := target.Read(ctx, e, c, g, f.Selection)
		if !(f.ignore && failure.IsNotFound(err)) {
			failed.Add(err)
		}
		if err := sortBy(list, f.sortBy); err != nil {
			return err
		}
		found[i] = list
		all = append(all, list...)
	}
	if form.Word != printer.Table && form.Word != printer.Wide {
		single := len(groups) == 1 && len(groups[0].Names) == 1
		if !single || len(all) > 0 {
			failed.Add(form.Write(e.Out, all, single))
		}
		return failed.Err()
	}
	if len(all) == 0 {
		if len(failed) == 0 && !f.ignore {
			fmt.Fprintln(e.Err, printer.Nothing(e, groups, f.Selection))
		}
		return failed.Err()
	}
	failed.Add(tables(e, groups, found, form, f))
	return failed.Err()
}

func (f getFlags) tableOptions(form printer.Format, several bool) table.Options {
	return table.Options{
		Wide: form.Word == printer.Wide, Namespace: f.Everywhere, Qualified: several, Labels: f.showLabels,
		LabelKeys: f.labelKeys,
	}
}

// tables prints one table for each kind.
func tables(e *session.Env, groups []target.Group, found [][]target.Item, form printer.Format, f getFlags) error {
	printed := false
	for i, g := range groups {
		if len(found[i]) == 0 {
			continue
		}
		if printed {
			fmt.Fprintln(e.Out)
		}
		printed = true
		o := f.tableOptions(form, len(groups) > 1)
		var rows [][]string
		if !f.noHeaders {
			rows = append(rows, o.Header(g.Kind.ResourceType))
		}
		for _, t := range found[i] {
			rows = append(rows, o.Row(g.Kind.ResourceType, t.Object))
		}
		if err := table.New(e.Out).Print(rows...); err != nil {
			return err
		}
	}
	return nil
}

// getWatch prints the objects of one kind and then each change.
func getWatch(ctx context.Context, e *session.Env, c *client.Client, groups []target.Group, form printer.Format,
	f getFlags,
) error {
	if len(groups) != 1 || len(groups[0].Names) > 1 {
		return errors.New("you may only specify a single resource type, and at most one name, to watch")
	}
	g := groups[0]
	s := target.Scope(e, g.Kind, f.Selection)
	if len(g.Names) == 1 {
		if _, err := c.Get(ctx, g.Kind, s.Namespace, g.Names[0]); err != nil && !(f.ignore && failure.IsNotFound(err)) {
			return err
		}
		s.Fields = "metadata.name=" + g.Names[0]
	}
	list, revision, err := c.List(ctx, g.Kind, s)
	if err != nil {
		return err
	}
	w := &watchPrinter{
		out: e.Out, kind: g.Kind, form: form, options: f.tableOptions(form, false), headed: f.noHeaders,
		table: table.New(e.Out),
	}
	var first []target.Item
	for _, o := range list {
		first = append(first, target.Item{Kind: g.Kind, Object: o})
	}
	if err := sortBy(first, f.sortBy); err != nil {
		return err
	}
	if f.watchOnly {
		first = nil
	}
	if err := w.print(first...); err != nil {
		return err
	}
	shown := target.RevisionNumber(revision)
	err = c.Follow(ctx, g.Kind, s, revision, func(ev client.Event) error {
		for _, change := range ev.Events {
			at := target.RevisionNumber(change.Object.GetMetadata().GetResourceVersion())
			if at <= shown && change.Type == resource.Added {
				continue // the watch restarted and repeats what has been printed
			}
			if err := w.print(target.Item{Kind: g.Kind, Object: change.Object}); err != nil {
				return err
			}
		}
		shown = max(shown, target.RevisionNumber(ev.Revision))
		return nil
	})
	if ctx.Err() != nil {
		return nil // interrupted by the user
	}
	return err
}

// watchPrinter prints objects as they arrive.
type watchPrinter struct {
	out     io.Writer
	kind    client.Kind
	form    printer.Format
	options table.Options
	headed  bool
	table   *table.Writer
	count   int
}

func (w *watchPrinter) print(list ...target.Item) error {
	if len(list) == 0 {
		return nil
	}
	if w.form.Word == printer.Table || w.form.Word == printer.Wide {
		var rows [][]string
		if !w.headed {
			w.headed = true
			rows = append(rows, w.options.Header(w.kind.ResourceType))
		}
		for _, t := range list {
			rows = append(rows, w.options.Row(w.kind.ResourceType, t.Object))
		}
		return w.table.Print(rows...)
	}
	if w.form.Word == printer.Columns {
		rows, err := w.form.ColumnRows(list)
		if err != nil {
			return err
		}
		w.form.Headless = true
		return w.table.Print(rows...)
	}
	for _, t := range list {
		if w.count++; w.count > 1 && w.form.Word == printer.YAML {
			fmt.Fprintln(w.out, "---")
		}
		if err := w.form.Write(w.out, []target.Item{t}, true); err != nil {
			return err
		}
		if w.form.Word == printer.JSONPath {
			fmt.Fprintln(w.out)
		}
	}
	return nil
}

// sortBy sorts objects by the value at a path; objects without a value come first.
func sortBy(list []target.Item, path string) error {
	if path == "" {
		return nil
	}
	p, err := printer.ParsePath(path)
	if err != nil {
		return err
	}
	type keyed struct {
		target.Item
		value any
	}
	all := make([]keyed, len(list))
	present := false
	for i, t := range list {
		v, err := printer.Plain(t.Object)
		if err != nil {
			return err
		}
		found, err := p.FindResults(v)
		if err != nil {
			return err
		}
		all[i].Item = t
		if len(found) > 0 && len(found[0]) > 0 && found[0][0].IsValid() && found[0][0].CanInterface() {
			all[i].value, present = found[0][0].Interface(), true
		}
	}
	if !present && len(list) > 0 {
		return fmt.Errorf("couldn't find any field with path %q in the list of objects", path)
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return compareValues(a.value, b.value) })
	for i := range all {
		list[i] = all[i].Item
	}
	return nil
}

func compareValues(a, b any) int {
	x, aNumber := a.(float64)
	y, bNumber := b.(float64)
	switch {
	case a == nil || b == nil:
		return cmp.Compare(btoi(a != nil), btoi(b != nil))
	case aNumber && bNumber:
		return cmp.Compare(x, y)
	}
	return cmp.Compare(printer.Scalar(reflect.ValueOf(a)), printer.Scalar(reflect.ValueOf(b)))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
