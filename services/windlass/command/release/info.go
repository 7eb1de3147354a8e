package release

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// infoFlags is the flags of "adm release info".
type infoFlags struct {
	source
	include, output string
	pullspecs       bool
}

func newInfo(e *session.Env) *cobra.Command {
	var f infoFlags
	cmd := &cobra.Command{
		Use:   "info IMAGE",
		Short: "Show the contents of a release image",
		Long:  "Show the contents of a release image.\n" + releaseImages,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			form, err := printer.Parse(f.output, printer.JSON, printer.YAML)
			if err != nil {
				return err
			}
			if f.include != "" && f.include != "manifests" {
				return fmt.Errorf("--include must be manifests, not %q", f.include)
			}
			if f.include != "" && f.pullspecs {
				return errors.New("cannot specify both --include and --pullspecs")
			}
			p, err := f.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, s := range p.Skipped {
				fmt.Fprintf(e.Err, "warning: %s is a template, its manifests are not shown\n", s)
			}
			return f.print(e.Out, form, args[0], p)
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.include, "include", "",
		"manifests to also list the manifests, in the order in which they are loaded")
	cmd.Flags().BoolVar(&f.pullspecs, "pullspecs", false, "show full image names instead of digests")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json or yaml")
	return cmd
}

func (f *infoFlags) print(w io.Writer, form printer.Format, ref string, p *release.Payload) error {
	switch form.Word {
	case printer.JSON:
		return printer.WriteJSON(w, f.document(ref, p))
	case printer.YAML:
		text, err := yaml.Marshal(f.document(ref, p))
		if err != nil {
			return err
		}
		_, err = terminal.Raw(w).Write(text)
		return err
	}
	name := p.Metadata.Version
	fmt.Fprintf(w,
		"Name:           %s\nDigest:         %s\nCreated:        %s\nManifests:      %d\nVersion hash:   %s\n\nPull From: %s\n",
		name, p.Digest, p.Created.Format(time.RFC3339), len(p.Manifests), p.VersionHash, ref)
	upgrades := table.None
	if len(p.Metadata.Previous) > 0 {
		upgrades = strings.Join(p.Metadata.Previous, ", ")
	}
	fmt.Fprintf(w, "\nRelease Metadata:\n  Version:  %s\n  Upgrades: %s\n", name, upgrades)
	if url := p.Metadata.Metadata["url"]; url != "" {
		fmt.Fprintf(w, "  Metadata:\n    url: %s\n", url)
	}
	if err := f.printImages(w, p); err != nil || f.include == "" {
		return err
	}
	fmt.Fprint(w, "\nManifests:\n")
	rows := [][]string{{"FILE", "KIND", "NAMESPACE", "NAME"}}
	for _, m := range p.Manifests {
		rows = append(rows, []string{m.File, m.Kind, m.Namespace, m.Name})
	}
	return table.NewIndented(w, "  ").Print(rows...)
}

func (f *infoFlags) printImages(w io.Writer, p *release.Payload) error {
	if len(p.Images) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nImages:\n")
	rows := [][]string{{"NAME", "DIGEST"}}
	if f.pullspecs {
		rows[0][1] = "PULL SPEC"
	}
	for _, i := range p.Images {
		spec := i.Image
		if _, digest, ok := strings.Cut(spec, "@"); ok && !f.pullspecs {
			spec = digest
		}
		rows = append(rows, []string{i.Name, spec})
	}
	return table.NewIndented(w, "  ").Print(rows...)
}

// document returns a release for JSON and YAML output.
func (f *infoFlags) document(ref string, p *release.Payload) map[string]any {
	images := []any{}
	for _, i := range p.Images {
		images = append(images, map[string]any{"name": i.Name, "image": i.Image})
	}
	doc := map[string]any{
		"image": ref, "digest": p.Digest, "created": p.Created.Format(time.RFC3339), "versionHash": p.VersionHash,
		"metadata": p.Metadata,
		"images":   images, "manifestCount": len(p.Manifests),
	}
	if f.include == "" {
		return doc
	}
	manifests := []any{}
	for _, m := range p.Manifests {
		manifests = append(manifests, map[string]any{
			"file": m.File, "document": m.Document, "apiVersion": m.APIVersion, "kind": m.Kind, "namespace": m.Namespace,
			"name": m.Name,
		})
	}
	doc["manifests"] = manifests
	return doc
}
