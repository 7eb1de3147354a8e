package release

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newSign(e *session.Env) *cobra.Command {
	var keyFile, store string
	cmd := &cobra.Command{
		Use:   "sign NAME@DIGEST --signing-key FILE --signature-store DIR",
		Short: "Sign an image, of a release or of pods, by its digest",
		Long: `Add a signature of an image to a signature store. The image is not read: its digest is what is
signed. Nodes check signatures of images as their registries.yaml says.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name, digest, found := strings.Cut(args[0], "@")
			if !found || name == "" {
				return fmt.Errorf("%q must be of the form NAME@DIGEST", args[0])
			}
			key, err := readKey(keyFile)
			if err != nil {
				return err
			}
			path, err := key.Sign(store, digest, name, time.Now())
			if err == nil {
				fmt.Fprintf(e.Out, "Signature: %s\n", path)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&keyFile, "signing-key", "", "file with the signing key")
	cmd.Flags().StringVar(&store, "signature-store", "", "directory for the signature; created if it does not exist")
	needFlags(cmd, "signing-key", "signature-store")
	return cmd
}

func readKey(file string) (release.Key, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return release.Key{}, err
	}
	key, err := release.ReadKey(raw)
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return key, err
}
