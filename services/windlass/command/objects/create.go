package objects

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// NewCreate returns the command create.
func NewCreate(e *session.Env) *cobra.Command {
	var f input.Files
	var w change.Flags
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Create objects from files",
		Example: `  windlass create -f machineset.yaml
  windlass create -f documents/ --dry-run=server
  cat machineset.yaml | windlass create -f - -o yaml
  windlass create job backup-now --from=cronjob/backup
  windlass create configmap settings --from-literal=level=debug --from-file=app.conf
  windlass create secret generic login --from-literal=user=app --from-file=password=./password.txt
  windlass create serviceaccount operator
  windlass create token operator`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return eachDocument(cmd.Context(), e, f, &w, func(ctx context.Context, c *client.Client,
				d input.Document) (object.Object,
				string, error,
			) {
				if w.Client() {
					return d.Object, "created", nil
				}
				o, err := c.Create(ctx, d.Kind, d.Object, w.Server())
				return o, "created", err
			})
		},
	}
	f.AddFlags(cmd.Flags(), "the objects to create")
	w.AddFlags(cmd.Flags())
	cmd.AddCommand(newCreateJob(e), newCreateConfigMap(e), newCreateSecret(e),
		newCreateServiceAccount(e), newCreateToken(e))
	return cmd
}

// eachDocument calls do for each document of the files and prints the results. It continues after a document that
// fails.
func eachDocument(ctx context.Context, e *session.Env, f input.Files, w *change.Flags,
	do func(context.Context, *client.Client,
		input.Document) (object.Object, string, error),
) error {
	if err := w.Settle(); err != nil {
		return err
	}
	documents, err := f.ReadAny(ctx, e)
	var failed failure.List
	failed.Add(err)
	if len(documents) == 0 {
		return failed.Err()
	}
	failed.Add(e.WithClient(func(c *client.Client) error {
		var failed failure.List
		for _, d := range documents {
			if err := input.Place(e, d); err != nil {
				failed.Add(err)
				continue
			}
			o, verb, err := do(ctx, c, d)
			if err != nil {
				failed.Add(d.Placed(err))
				continue
			}
			failed.Add(w.Print(e.Out, d.Kind, o, verb))
		}
		return failed.Err()
	}))
	return failed.Err()
}
