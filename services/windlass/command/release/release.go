// Package release makes the command adm release: create, sign, inspect and extract release images.
package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/registry"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// releasePatience limits the download of a release image from a registry.
const releasePatience = 4 * time.Minute

// New returns the command release, a subcommand of adm.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Create, sign and inspect release images; only verify needs a cluster",
		Example: `  windlass adm release keygen --to keys
  windlass adm release new --from-dir manifests --version 1.1.0 --previous 1.0.0 --to images --signing-key keys/signing-key.asc --signature-store signatures
  windlass adm release sign example.com/team/web@sha256:… --signing-key keys/signing-key.asc --signature-store signatures
  windlass adm release info images
  windlass adm release verify windlass/release@sha256:…
  windlass adm release extract windlass/release@sha256:… --store images --to payload`,
	}
	cmd.AddCommand(newImage(e), newInfo(e), newExtract(e), newKeygen(e), newSign(e), newVerify(e))
	return cmd
}

// source are the flags that locate a release image.
type source struct{ stores []string }

const releaseImages = `
IMAGE is an OCI layout (its directory, or oci:DIR), one image in a layout (oci:DIR@sha256:…), an
image by digest that is in one of the layouts of --store, or an image in a registry, by the
credentials that docker or podman has stored for you.`

func (s *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&s.stores, "store", nil,
		"directories of OCI layouts in which images are looked up by digest")
}

// load finds and reads a release image.
func (s *source) load(ctx context.Context, ref string) (*release.Payload, error) {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	if _, err := os.Stat(filepath.Join(ref, "index.json")); err == nil {
		ref = "oci:" + ref
	}
	image, err := release.Open(ctx, ref, release.Places{
		Layouts: s.stores, Registries: registry.Access{Keychain: authn.DefaultKeychain},
	})
	if err != nil {
		return nil, err
	}
	return release.Load(image)
}

func newKeygen(e *session.Env) *cobra.Command {
	var to, owner string
	cmd := &cobra.Command{
		Use:   "keygen --to DIR",
		Short: "Generate a key pair for signing releases: signing-key.asc and public-key.asc",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			private, public, err := release.GenerateKey(owner, time.Now())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			for _, f := range []struct {
				name    string
				content []byte
				mode    os.FileMode
			}{{"signing-key.asc", private, 0o600}, {"public-key.asc", public, 0o644}} {
				path := filepath.Join(to, f.name)
				if err := writeNew(path, f.content, f.mode); err != nil {
					return err
				}
				fmt.Fprintf(e.Out, "%s created\n", path)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "directory for the two files")
	cmd.Flags().StringVar(&owner, "owner", "Windlass release key", "name of the key's owner")
	needFlags(cmd, "to")
	return cmd
}

// writeNew writes a file that must not exist: an overwritten key could not be recovered.
func writeNew(path string, content []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// needFlags makes flags of a verb required, with oc's error message.
func needFlags(cmd *cobra.Command, names ...string) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range names {
			if cmd.Flag(name).Value.String() == "" {
				return fmt.Errorf("--%s is required", name)
			}
		}
		return run(cmd, args)
	}
}

// imagePairs reads the values of --image.
func imagePairs(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, image, ok := strings.Cut(p, "=")
		if !ok || name == "" || image == "" {
			return nil, fmt.Errorf("--image %q must be of the form NAME=IMAGE", p)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("--image %s is specified twice", name)
		}
		out[name] = image
	}
	return out, nil
}
