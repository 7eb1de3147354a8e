package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

func newReplace(e *env) *cobra.Command {
	var f files
	var w writeFlags
	cmd := &cobra.Command{
		Use:   "replace -f FILE",
		Short: "Replace objects with those in files",
		Long: `Replace metadata and spec of objects with those in files. If a file has a metadata.resourceVersion,
the object must still be at that version; without it, the latest version is replaced.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.eachDocument(cmd.Context(), f, &w, func(ctx context.Context, c *client.Client, d document) (object.Object,
				string, error,
			) {
				if w.client() {
					return d.object, "replaced", nil
				}
				if m := d.object.GetMetadata(); m != nil && m.GetNamespace() == "" {
					m.Namespace = e.namespaceOf(d.kind)
				}
				o, err := c.Update(ctx, d.kind, d.object, w.server())
				return o, "replaced", err
			})
		},
	}
	f.flags(cmd.Flags(), "the desired objects")
	w.flags(cmd.Flags())
	return cmd
}
