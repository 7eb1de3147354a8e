package command

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

type patchFlags struct {
	writeFlags
	patch, file, kind, subresource string
}

func newPatch(e *env) *cobra.Command {
	var f patchFlags
	cmd := &cobra.Command{
		Use:   "patch (TYPE NAME... | TYPE/NAME...) -p PATCH",
		Short: "Update fields of objects with a patch",
		Example: `  windlass patch machineset workers -p '{"spec":{"deletePolicy":"Oldest"}}'
  windlass patch node/a --type=json -p '[{"op":"add","path":"/metadata/labels/rack","value":"7"}]'`,
		ValidArgsFunction: e.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return e.patch(cmd.Context(), args, f) },
	}
	fs := cmd.Flags()
	f.flags(fs)
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

func (e *env) patch(ctx context.Context, args []string, f patchFlags) error {
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
	if err := f.settle(); err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		list, err := e.targets(ctx, c, args, selection{})
		var failed failures
		failed.add(err)
		for _, t := range list {
			var after object.Object
			if !f.client() {
				if after, err = c.PatchPart(ctx, t.kind, t.namespace(), t.name(), f.subresource, media, body,
					f.server()); err != nil {
					failed.add(err)
					continue
				}
			} else if after, err = patchHere(t, media, body); err != nil {
				failed.add(err)
				continue
			}
			verb := "patched"
			if f.suffix() == "" && after.GetMetadata().GetResourceVersion() == t.object.GetMetadata().GetResourceVersion() {
				verb = "patched (no change)"
			}
			failed.add(f.print(e.out, t.kind, after, verb))
		}
		return failed.err()
	})
}
