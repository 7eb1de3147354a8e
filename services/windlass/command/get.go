package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type getFlags struct {
	selection
	output     string
	watch      bool
	watchOnly  bool
	noHeaders  bool
	showLabels bool
	labelKeys  []string
	sortBy     string
	ignore     bool
}

func newGet(e *env) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get TYPE[,TYPE] [NAME...] | TYPE/NAME...",
		Short: "List one or many objects",
		Example: `  windlass get machines -o wide
  windlass get machines,nodes
  windlass get machine/a node/b -o yaml
  windlass get machines -l machine.openshift.io/cluster-api-machine-role=master --watch
  windlass get nodes -o jsonpath='{.items[*].metadata.name}'
  windlass get machines -o custom-columns=NAME:.metadata.name,PHASE:.status.phase`,
		ValidArgsFunction: e.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.get(cmd.Context(), args, f)
		},
	}
	fs := cmd.Flags()
	f.flags(fs)
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

func (e *env) get(ctx context.Context, args []string, f getFlags) error {
	form, err := parseFormat(f.output, formatWide, formatJSON, formatYAML, formatName, formatJSONPath, formatColumns)
	if err != nil {
		return err
	}
	form.headless = f.noHeaders
	groups, err := parseGroups(args)
	if err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		if f.watch || f.watchOnly {
			return e.getWatch(ctx, c, groups, form, f)
		}
		return e.getOnce(ctx, c, groups, form, f)
	})
}

func (e *env) getOnce(ctx context.Context, c *client.Client, groups []group, form format, f getFlags) error {
	var failed failures
	found := make([][]target, len(groups))
	var all []target
	for i, g := range groups {
		if len(g.names) > 0 && f.selects() {
			return errors.New("name cannot be provided when a selector is specified")
		}
		list, err := e.read(ctx, c, g, f.selection)
		if !(f.ignore && isNotFound(err)) {
			failed.add(err)
		}
		if err := sortBy(list, f.sortBy); err != nil {
			return err
		}
		found[i] = list
		all = append(all, list...)
	}
	if form.word != formatTable && form.word != formatWide {
		single := len(groups) == 1 && len(groups[0].names) == 1
		if !single || len(all) > 0 {
			failed.add(form.write(e.out, all, single))
		}
		return failed.err()
	}
	if len(all) == 0 {
		if len(failed) == 0 && !f.ignore {
			fmt.Fprintln(e.err, e.nothing(groups, f.selection))
		}
		return failed.err()
	}
	failed.add(e.tables(groups, found, form, f))
	return failed.err()
}

// nothing returns the message for an empty list, as kubectl words it.
func (e *env) nothing(groups []group, s selection) string {
	k := groups[0].kind
	if !k.GetNamespaced() || s.everywhere {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", e.namespaceOf(k))
}

func (f getFlags) tableOptions(form format, several bool) table.Options {
	return table.Options{
		Wide: form.word == formatWide, Namespace: f.everywhere, Qualified: several, Labels: f.showLabels,
		LabelKeys: f.labelKeys,
	}
}

// tables prints one table for each kind.
func (e *env) tables(groups []group, found [][]target, form format, f getFlags) error {
	printed := false
	for i, g := range groups {
		if len(found[i]) == 0 {
			continue
		}
		if printed {
			fmt.Fprintln(e.out)
		}
		printed = true
		o := f.tableOptions(form, len(groups) > 1)
		var rows [][]string
		if !f.noHeaders {
			rows = append(rows, o.Header(g.kind.ResourceType))
		}
		for _, t := range found[i] {
			rows = append(rows, o.Row(g.kind.ResourceType, t.object))
		}
		if err := table.New(e.out).Print(rows...); err != nil {
			return err
		}
	}
	return nil
}

// getWatch prints the objects of one kind and then each change.
func (e *env) getWatch(ctx context.Context, c *client.Client, groups []group, form format, f getFlags) error {
	if len(groups) != 1 || len(groups[0].names) > 1 {
		return errors.New("you may only specify a single resource type, and at most one name, to watch")
	}
	g := groups[0]
	s := e.scope(g.kind, f.selection)
	if len(g.names) == 1 {
		if _, err := c.Get(ctx, g.kind, s.Namespace, g.names[0]); err != nil && !(f.ignore && isNotFound(err)) {
			return err
		}
		s.Fields = "metadata.name=" + g.names[0]
	}
	list, revision, err := c.List(ctx, g.kind, s)
	if err != nil {
		return err
	}
	w := &watchPrinter{
		out: e.out, kind: g.kind, form: form, options: f.tableOptions(form, false), headed: f.noHeaders,
		table: table.New(e.out),
	}
	var first []target
	for _, o := range list {
		first = append(first, target{g.kind, o})
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
	shown := revisionNumber(revision)
	err = c.Follow(ctx, g.kind, s, revision, func(ev client.Event) error {
		for _, change := range ev.Events {
			at := revisionNumber(change.Object.GetMetadata().GetResourceVersion())
			if at <= shown && change.Type == resource.Added {
				continue // the watch restarted and repeats what has been printed
			}
			if err := w.print(target{g.kind, change.Object}); err != nil {
				return err
			}
		}
		shown = max(shown, revisionNumber(ev.Revision))
		return nil
	})
	if ctx.Err() != nil {
		return nil // interrupted by the user
	}
	return err
}

func revisionNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// watchPrinter prints objects as they arrive.
type watchPrinter struct {
	out     io.Writer
	kind    client.Kind
	form    format
	options table.Options
	headed  bool
	table   *table.Writer
	count   int
}

func (w *watchPrinter) print(list ...target) error {
	if len(list) == 0 {
		return nil
	}
	if w.form.word == formatTable || w.form.word == formatWide {
		var rows [][]string
		if !w.headed {
			w.headed = true
			rows = append(rows, w.options.Header(w.kind.ResourceType))
		}
		for _, t := range list {
			rows = append(rows, w.options.Row(w.kind.ResourceType, t.object))
		}
		return w.table.Print(rows...)
	}
	if w.form.word == formatColumns {
		rows, err := w.form.columnRows(list)
		if err != nil {
			return err
		}
		w.form.headless = true
		return w.table.Print(rows...)
	}
	for _, t := range list {
		if w.count++; w.count > 1 && w.form.word == formatYAML {
			fmt.Fprintln(w.out, "---")
		}
		if err := w.form.write(w.out, []target{t}, true); err != nil {
			return err
		}
		if w.form.word == formatJSONPath {
			fmt.Fprintln(w.out)
		}
	}
	return nil
}

// sortBy sorts objects by the value at a path; objects without a value come first.
func sortBy(list []target, path string) error {
	if path == "" {
		return nil
	}
	p, err := relaxed(path)
	if err != nil {
		return err
	}
	type keyed struct {
		target
		value any
	}
	all := make([]keyed, len(list))
	present := false
	for i, t := range list {
		v, err := plain(t.object)
		if err != nil {
			return err
		}
		found, err := p.FindResults(v)
		if err != nil {
			return err
		}
		all[i].target = t
		if len(found) > 0 && len(found[0]) > 0 && found[0][0].IsValid() && found[0][0].CanInterface() {
			all[i].value, present = found[0][0].Interface(), true
		}
	}
	if !present && len(list) > 0 {
		return fmt.Errorf("couldn't find any field with path %q in the list of objects", path)
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return compareValues(a.value, b.value) })
	for i := range all {
		list[i] = all[i].target
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
	return cmp.Compare(scalar(reflect.ValueOf(a)), scalar(reflect.ValueOf(b)))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
