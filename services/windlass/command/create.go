package command

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// writeFlags are the flags that all modifying verbs have.
type writeFlags struct {
	dryRun
	printed
}

func (f *writeFlags) flags(fs *pflag.FlagSet) {
	f.flag(fs)
	fs.StringVarP(&f.output, "output", "o", "", "output format: json, yaml, name or jsonpath=TEMPLATE")
}

func (f *writeFlags) settle() error {
	if err := f.check(); err != nil {
		return err
	}
	f.dry = f.suffix()
	return f.parse()
}

func newCreate(e *env) *cobra.Command {
	var f files
	var w writeFlags
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Create objects from files",
		Example: `  windlass create -f machineset.yaml
  windlass create -f documents/ --dry-run=server
  cat machineset.yaml | windlass create -f - -o yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.eachDocument(cmd.Context(), f, &w, func(ctx context.Context, c *client.Client, d document) (object.Object,
				string, error,
			) {
				if w.client() {
					return d.object, "created", nil
				}
				o, err := c.Create(ctx, d.kind, d.object, w.server())
				return o, "created", err
			})
		},
	}
	f.flags(cmd.Flags(), "the objects to create")
	w.flags(cmd.Flags())
	return cmd
}

// eachDocument calls do for each document of the files and prints the results. It continues after a document that
// fails.
func (e *env) eachDocument(ctx context.Context, f files, w *writeFlags, do func(context.Context, *client.Client,
	document) (object.Object, string, error),
) error {
	if err := w.settle(); err != nil {
		return err
	}
	documents, err := f.read(e.in)
	var failed failures
	failed.add(err)
	if len(documents) == 0 {
		return failed.err()
	}
	failed.add(e.withClient(func(c *client.Client) error {
		var failed failures
		for _, d := range documents {
			if err := e.place(d); err != nil {
				failed.add(err)
				continue
			}
			o, verb, err := do(ctx, c, d)
			if err != nil {
				failed.add(d.placed(err))
				continue
			}
			failed.add(w.print(e.out, d.kind, o, verb))
		}
		return failed.err()
	}))
	return failed.err()
}
