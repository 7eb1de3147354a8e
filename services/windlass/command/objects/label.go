package objects

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
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// marks holds the differences between label and annotate.
type marks struct {
	field string // in metadata: "labels"
	noun  string // "label"
	set   string // reported if a key was set: "labeled"
	unset string // reported if keys were only removed
	same  string // reported if nothing changed
	of    func(target.Item) map[string]string
}

func labelMarks() marks {
	return marks{"labels", "label", "labeled", "unlabeled", "not labeled", func(t target.Item) map[string]string {
		return t.Object.GetMetadata().GetLabels()
	}}
}

func annotationMarks() marks {
	return marks{
		"annotations", "annotation", "annotated", "annotated", "not annotated",
		func(t target.Item) map[string]string { return t.Object.GetMetadata().GetAnnotations() },
	}
}

type markFlags struct {
	target.Selection
	change.Flags
	overwrite, list bool
	version         string
}

// NewLabel returns the command label.
func NewLabel(e *session.Env) *cobra.Command {
	return newMark(e, labelMarks(), "label", "Update the labels of objects", `  windlass label machines a team=web
  windlass label machine/a team-
  windlass label machines --all --overwrite team=web`)
}

// NewAnnotate returns the command annotate.
func NewAnnotate(e *session.Env) *cobra.Command {
	return newMark(e, annotationMarks(), "annotate", "Update the annotations of objects", `  windlass annotate machine a machine.openshift.io/delete-machine=true
  windlass annotate machine a machine.openshift.io/delete-machine-`)
}

func newMark(e *session.Env, m marks, verb, short, example string) *cobra.Command {
	var f markFlags
	cmd := &cobra.Command{
		Use:               verb + " (TYPE NAME... | TYPE/NAME... | TYPE --all | TYPE -l SELECTOR) KEY=VALUE... KEY-...",
		Short:             short,
		Example:           example,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return mark(cmd.Context(), e, m, args, f) },
	}
	fs := cmd.Flags()
	f.Selection.AddFlags(fs)
	f.AddAll(fs)
	f.Flags.AddFlags(fs)
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

func mark(ctx context.Context, e *session.Env, m marks, args []string, f markFlags) error {
	objects, set, remove, err := splitMarks(m, args)
	if err != nil {
		return err
	}
	if len(set)+len(remove) == 0 && !f.list {
		return fmt.Errorf("at least one %s update is required", m.noun)
	}
	if err := f.Settle(); err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		list, err := target.Find(ctx, e, c, objects, f.Selection)
		var failed failure.List
		failed.Add(err)
		if f.version != "" && len(list) > 1 {
			return errors.New("--resource-version may only be used with a single resource")
		}
		for _, t := range list {
			if f.list {
				for _, k := range slices.Sorted(maps.Keys(m.of(t))) {
					fmt.Fprintf(e.Out, "%s=%s\n", k, m.of(t)[k])
				}
				continue
			}
			failed.Add(markOne(ctx, e, c, m, t, set, remove, &f))
		}
		return failed.Err()
	})
}

func markOne(ctx context.Context, e *session.Env, c *client.Client, m marks, t target.Item, set map[string]string,
	remove []string,
	f *markFlags,
) error {
	have := m.of(t)
	changes := map[string]any{}
	var failed failure.List
	for _, key := range slices.Sorted(maps.Keys(set)) {
		old, there := have[key]
		if there && old != set[key] && !f.overwrite {
			failed.Add(fmt.Errorf("%s: '%s' already has a value (%s), and --overwrite is false", t, key, old))
		}
		if !there || old != set[key] {
			changes[key] = set[key]
		}
	}
	if len(failed) > 0 {
		return failed.Err()
	}
	done := m.same
	for _, key := range remove {
		if _, there := have[key]; there {
			changes[key], done = nil, m.unset
		} else {
			fmt.Fprintf(e.Err, "%s %q not found.\n", m.noun, key)
		}
	}
	for _, v := range changes {
		if v != nil {
			done = m.set
		}
	}
	if len(changes) == 0 && f.version == "" {
		return f.Print(e.Out, t.Kind, t.Object, done)
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
	if f.Client() {
		after, err = change.PatchLocally(t, manifest.MergePatch, body)
	} else {
		after, err = c.Patch(ctx, t.Kind, t.Namespace(), t.Name(), manifest.MergePatch, body, f.Server())
	}
	if err != nil {
		return err
	}
	return f.Print(e.Out, t.Kind, after, done)
}
