package objects

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

type patchFlags struct {
	change.Flags
	patch, file, kind, subresource string
}

// NewPatch returns the command patch.
func NewPatch(e *session.Env) *cobra.Command {
	var f patchFlags
	cmd := &cobra.Command{
		Use:   "patch (TYPE NAME... | TYPE/NAME...) -p PATCH",
		Short: "Update fields of objects with a patch",
		Example: `  windlass patch machineset workers -p '{"spec":{"deletePolicy":"Oldest"}}'
  windlass patch node/a --type=json -p '[{"op":"add","path":"/metadata/labels/rack","value":"7"}]'`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return patch(cmd.Context(), e, args, f) },
	}
	fs := cmd.Flags()
	f.AddFlags(fs)
	fs.StringVarP(&f.patch, "patch", "p", "", "the patch, as JSON or YAML")
	fs.StringVar(&f.file, "patch-file", "", "file that contains the patch")
	fs.StringVar(&f.kind, "type", "strategic", "type of the patch: strategic, merge or json")
	fs.StringVar(&f.subresource, "subresource", "", "status to patch only the status")
	return cmd
}

// patchType returns the media type for a value of --type.
func patchType(word string) (string, error) {
	switch word {
	case "strategic":
		return manifest.StrategicPatch, nil
	case "merge":
		return manifest.MergePatch, nil
	case "json":
		return manifest.JSONPatch, nil
	}
	return "", fmt.Errorf(`--type must be one of [json merge strategic], not "%s"`, word)
}

func (f patchFlags) body() ([]byte, error) {
	raw := []byte(f.patch)
	switch {
	case f.patch != "" && f.file != "":
		return nil, errors.New("cannot specify --patch and --patch-file together")
	case f.file != "":
		var err error
		if raw, err = os.ReadFile(f.file); err != nil {
			return nil, err
		}
	case f.patch == "":
		return nil, errors.New("must specify -p to patch")
	}
	body, err := manifest.JSON(raw)
	if err != nil {
		return nil, fmt.Errorf("unable to parse %q: %w", raw, err)
	}
	return body, nil
}

func patch(ctx context.Context, e *session.Env, args []string, f patchFlags) error {
	media, err := patchType(f.kind)
	if err != nil {
		return err
	}
	if f.subresource != "" && f.subresource != "status" {
		return fmt.Errorf(`invalid subresource value: %q. Must be one of [status]`, f.subresource)
	}
	body, err := f.body()
	if err != nil {
		return err
	}
	if err := f.Settle(); err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		list, err := target.Find(ctx, e, c, args, target.Selection{})
		var failed failure.List
		failed.Add(err)
		for _, t := range list {
			var after object.Object
			if !f.Client() {
				if after, err = c.PatchPart(ctx, t.Kind, t.Namespace(), t.Name(), f.subresource, media, body,
					f.Server()); err != nil {
					failed.Add(err)
					continue
				}
			} else if after, err = change.PatchLocally(t, media, body); err != nil {
				failed.Add(err)
				continue
			}
			verb := "patched"
			if f.Suffix() == "" && after.GetMetadata().GetResourceVersion() == t.Object.GetMetadata().GetResourceVersion() {
				verb = "patched (no change)"
			}
			failed.Add(f.Print(e.Out, t.Kind, after, verb))
		}
		return failed.Err()
	})
}
