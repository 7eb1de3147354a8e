package release

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// releaseFolder is the folder of a release image whose files are extracted.
const releaseFolder = "release-manifests"

// extractFlags is the flags of "adm release extract".
type extractFlags struct {
	source
	to, file string
}

func newExtract(e *session.Env) *cobra.Command {
	var f extractFlags
	cmd := &cobra.Command{
		Use:   "extract IMAGE",
		Short: "Extract the files of a release image to a directory, or one file to standard output",
		Long:  "Extract the files of a release image to a directory, or one file to standard output.\n" + releaseImages,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.file != "" && cmd.Flags().Changed("to") {
				return errors.New("cannot specify both --to and --file")
			}
			p, err := f.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.file != "" {
				return extractFile(terminal.Raw(e.Out), p, f.file)
			}
			if err := extractAll(f.to, p); err != nil {
				return err
			}
			_, err = fmt.Fprintf(e.Out, "Extracted release payload from digest %s created at %s\n", p.Digest,
				p.Created.Format(time.RFC3339))
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.to, "to", ".", "directory for the files; created if it does not exist")
	cmd.Flags().StringVar(&f.file, "file", "", "file to write to standard output")
	return cmd
}

func extractFile(w io.Writer, p *release.Payload, name string) error {
	for _, f := range p.Files {
		if f.Folder == releaseFolder && f.Name == name || path.Join(f.Folder, f.Name) == name {
			_, err := w.Write(f.Content)
			return err
		}
	}
	return fmt.Errorf("image did not contain %s", name)
}

// extractAll writes the files of a release. No file name and no existing symbolic link can make it write outside dir.
func extractAll(dir string, p *release.Payload) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range p.Files {
		if f.Folder != releaseFolder {
			continue
		}
		if err := root.WriteFile(f.Name, f.Content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
