package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// marks holds the differences between label and annotate.
type marks struct {
	field string // in metadata: "labels"
	noun  string // "label"
	set   string // reported if a key was set: "labeled"
	unset string // reported if keys were only removed
	same  string // reported if nothing changed
	of    func(target) map[string]string
}

func labelMarks() marks {
	return marks{"labels", "label", "labeled", "unlabeled", "not labeled", func(t target) map[string]string {
		return t.object.GetMetadata().GetLabels()
	}}
}

func annotationMarks() marks {
	return marks{
		"annotations", "annotation", "annotated", "annotated", "not annotated",
		func(t target) map[string]string { return t.object.GetMetadata().GetAnnotations() },
	}
}

type markFlags struct {
	selection
	writeFlags
	overwrite, list bool
	version         string
}

func newLabel(e *env) *cobra.Command {
	return newMark(e, labelMarks(), "label", "Update the labels of objects", `  windlass label machines a team=web
  windlass label machine/a team-
  windlass label machines --all --overwrite team=web`)
}

func newAnnotate(e *env) *cobra.Command {
	return newMark(e, annotationMarks(), "annotate", "Update the annotations of objects", `  windlass annotate machine a machine.openshift.io/delete-machine=true
  windlass annotate machine a machine.openshift.io/delete-machine-`)
}

func newMark(e *env, m marks, verb, short, example string) *cobra.Command {
	var f markFlags
	cmd := &cobra.Command{
		Use:               verb + " (TYPE NAME... | TYPE/NAME... | TYPE --all | TYPE -l SELECTOR) KEY=VALUE... KEY-...",
		Short:             short,
		Example:           example,
		ValidArgsFunction: e.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return e.mark(cmd.Context(), m, args, f) },
	}
	fs := cmd.Flags()
	f.selection.flags(fs)
	f.allFlag(fs)
	f.writeFlags.flags(fs)
	fs.BoolVar(&f.overwrite, "overwrite", false, "overwrite existing values")
	fs.BoolVar(&f.list, "list", false, "print the "+m.field+" instead")
	fs.StringVar(&f.version, "resource-version", "", "update the object only if it is at this resource version")
	return cmd
}

// splitMarks splits the arguments into objects and changes.
func splitMarks(m marks, args []string) (objects []string, set map[string]string, remove []string, err error) {
	set = map[string]string{}
	for i, arg := range args {
		key, value, assigns := strings.Cut(arg, "=")
		isFirst := i == 0 // the type, whatever it looks like
		switch {
		case assigns && !isFirst:
			if key == "" {
				return nil, nil, nil, fmt.Errorf("invalid %s spec: %v", m.noun, arg)
			}
			set[key] = value
		case strings.HasSuffix(arg, "-") && !isFirst:
			remove = append(remove, strings.TrimSuffix(arg, "-"))
		case len(set)+len(remove) > 0:
			return nil, nil, nil, fmt.Errorf("all resources must be specified before %s changes: %s", m.noun, arg)
		default:
			objects = append(objects, arg)
		}
	}
	for _, key := range remove {
		if _, both := set[key]; both {
			return nil, nil, nil, fmt.Errorf("can not both modify and remove %s %q in the same command", m.noun, key)
		}
	}
	return objects, set, remove, nil
}

func (e *env) mark(ctx context.Context, m marks, args []string, f markFlags) error {
	objects, set, remove, err := splitMarks(m, args)
	if err != nil {
		return err
	}
	if len(set)+len(remove) == 0 && !f.list {
		return fmt.Errorf("at least one %s update is required", m.noun)
	}
	if err := f.settle(); err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		list, err := e.targets(ctx, c, objects, f.selection)
		var failed failures
		failed.add(err)
		if f.version != "" && len(list) > 1 {
			return errors.New("--resource-version may only be used with a single resource")
		}
		for _, t := range list {
			if f.list {
				for _, k := range slices.Sorted(maps.Keys(m.of(t))) {
					fmt.Fprintf(e.out, "%s=%s\n", k, m.of(t)[k])
				}
				continue
			}
			failed.add(e.markOne(ctx, c, m, t, set, remove, &f))
		}
		return failed.err()
	})
}

func (e *env) markOne(ctx context.Context, c *client.Client, m marks, t target, set map[string]string, remove []string,
	f *markFlags,
) error {
	have := m.of(t)
	changes := map[string]any{}
	var failed failures
	for _, key := range slices.Sorted(maps.Keys(set)) {
		old, there := have[key]
		if there && old != set[key] && !f.overwrite {
			failed.add(fmt.Errorf("%s: '%s' already has a value (%s), and --overwrite is false", t, key, old))
		}
		if !there || old != set[key] {
			changes[key] = set[key]
		}
	}
	if len(failed) > 0 {
		return failed.err()
	}
	done := m.same
	for _, key := range remove {
		if _, there := have[key]; there {
			changes[key], done = nil, m.unset
		} else {
			fmt.Fprintf(e.err, "%s %q not found.\n", m.noun, key)
		}
	}
	for _, v := range changes {
		if v != nil {
			done = m.set
		}
	}
	if len(changes) == 0 && f.version == "" {
		return f.print(e.out, t.kind, t.object, done)
	}
	metadata := map[string]any{m.field: changes}
	if f.version != "" {
		metadata["resourceVersion"] = f.version
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	var after object.Object
	if f.client() {
		after, err = patchHere(t, manifest.MergePatch, body)
	} else {
		after, err = c.Patch(ctx, t.kind, t.namespace(), t.name(), manifest.MergePatch, body, f.server())
	}
	if err != nil {
		return err
	}
	return f.print(e.out, t.kind, after, done)
}
