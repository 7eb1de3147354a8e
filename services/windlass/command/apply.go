package command

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

func newApply(e *env) *cobra.Command {
	var f files
	var w writeFlags
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create objects from files, or merge files into existing objects",
		Long: `Create objects from files, or merge the files' fields into existing objects. Fields that a file does
not contain are not changed; use edit or patch to remove a field.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.eachDocument(cmd.Context(), f, &w, func(ctx context.Context, c *client.Client, d document) (object.Object,
				string, error,
			) {
				return e.apply(ctx, c, d, w.dryRun)
			})
		},
	}
	f.flags(cmd.Flags(), "the desired objects")
	w.flags(cmd.Flags())
	return cmd
}

func (e *env) apply(ctx context.Context, c *client.Client, d document, dry dryRun) (object.Object, string, error) {
	if dry.client() {
		return d.object, "applied", nil
	}
	m := d.object.GetMetadata()
	if m.GetName() == "" { // created with generateName, or rejected by the server
		o, err := c.Create(ctx, d.kind, d.object, dry.server())
		return o, "created", err
	}
	ns := m.GetNamespace()
	if ns == "" {
		ns = e.namespaceOf(d.kind)
	}
	before, err := c.Get(ctx, d.kind, ns, m.GetName())
	if err != nil && !isNotFound(err) {
		return nil, "", err
	}
	after, err := c.Apply(ctx, d.kind, d.object, dry.server())
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
