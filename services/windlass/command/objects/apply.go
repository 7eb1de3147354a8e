package objects

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// NewApply returns the command apply.
func NewApply(e *session.Env) *cobra.Command {
	var f input.Files
	var w change.Flags
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create objects from files, or merge files into existing objects",
		Long: `Create objects from files, or merge the files' fields into existing objects. Fields that a file does
not contain are not changed; use edit or patch to remove a field.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return eachDocument(cmd.Context(), e, f, &w, func(ctx context.Context, c *client.Client,
				d input.Document) (object.Object,
				string, error,
			) {
				return apply(ctx, e, c, d, w.DryRun)
			})
		},
	}
	f.AddFlags(cmd.Flags(), "the desired objects")
	w.AddFlags(cmd.Flags())
	return cmd
}

func apply(ctx context.Context, e *session.Env, c *client.Client, d input.Document, dry change.DryRun) (object.Object,
	string, error,
) {
	if dry.Client() {
		return d.Object, "applied", nil
	}
	m := d.Object.GetMetadata()
	name := cmp.Or(m.GetName(), object.DefaultName(d.Kind.ResourceType))
	_, stored := d.Kind.Methods[resource.Apply]
	if name == "" || !stored { // created with generateName, or rejected by the server; or a Binding
		o, err := c.Create(ctx, d.Kind, d.Object, dry.Server())
		return o, "created", err
	}
	ns := m.GetNamespace()
	if ns == "" {
		ns = e.NamespaceOf(d.Kind)
	}
	before, err := c.Get(ctx, d.Kind, ns, name)
	if err != nil && !failure.IsNotFound(err) {
		return nil, "", err
	}
	after, err := c.Apply(ctx, d.Kind, d.Object, dry.Server())
	switch {
	case err != nil:
		return nil, "", err
	case before == nil || before.GetMetadata().GetUid() != after.GetMetadata().GetUid():
		return after, "created", nil
	case proto.Equal(before, after):
		return after, "unchanged", nil
	}
	return after, "configured", nil
}
