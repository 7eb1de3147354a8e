package objects

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// NewReplace returns the command replace.
func NewReplace(e *session.Env) *cobra.Command {
	var f input.Files
	var w change.Flags
	cmd := &cobra.Command{
		Use:   "replace -f FILE",
		Short: "Replace objects with those in files",
		Long: `Replace metadata and spec of objects with those in files. If a file has a metadata.resourceVersion,
the object must still be at that version; without it, the latest version is replaced.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return eachDocument(cmd.Context(), e, f, &w, func(ctx context.Context, c *client.Client,
				d input.Document) (object.Object,
				string, error,
			) {
				if w.Client() {
					return d.Object, "replaced", nil
				}
				if m := d.Object.GetMetadata(); m != nil && m.GetNamespace() == "" {
					m.Namespace = e.NamespaceOf(d.Kind)
				}
				o, err := c.Update(ctx, d.Kind, d.Object, w.Server())
				return o, "replaced", err
			})
		},
	}
	f.AddFlags(cmd.Flags(), "the desired objects")
	w.AddFlags(cmd.Flags())
	return cmd
}
