package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// editorVariables name the user's editor; the first one that is set is used.
var editorVariables = []string{"WINDLASS_EDITOR", "KUBE_EDITOR", "VISUAL", "EDITOR"}

const editHelp = `# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
`

// NewEdit returns the command edit.
func NewEdit(e *session.Env) *cobra.Command {
	var w change.Flags
	cmd := &cobra.Command{
		Use:   "edit (TYPE NAME... | TYPE/NAME...)",
		Short: "Edit objects in an editor",
		Long: "Edit objects in an editor: the value of $" + strings.Join(editorVariables, ", $") +
			", or vi.\n\nOnly your changes are sent, so that concurrent changes of other fields are kept. " +
			"If the server rejects\nyour changes, the editor opens again with the error at the top of the file.",
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.Settle(); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error {
				list, err := target.Find(cmd.Context(), e, c, args, target.Selection{})
				var failed failure.List
				failed.Add(err)
				for _, t := range list {
					failed.Add(edit(cmd.Context(), e, c, t, &w))
				}
				return failed.Err()
			})
		},
	}
	w.AddFlags(cmd.Flags())
	return cmd
}

// edit opens one object in the editor until the change is accepted or cancelled.
func edit(ctx context.Context, e *session.Env, c *client.Client, t target.Item, w *change.Flags) error {
	text, err := manifest.YAML(t.Object)
	if err != nil {
		return err
	}
	original, wrong := text, ""
	for {
		edited, err := openEditor(ctx, e, editHelp+wrong, text)
		if err != nil {
			return err
		}
		switch {
		case len(bytes.TrimSpace(edited)) == 0 || bytes.Equal(edited, original):
			fmt.Fprintln(e.Err, "Edit cancelled, no changes made.")
			return nil
		case wrong != "" && bytes.Equal(edited, text):
			return keepEdited(e, edited, errors.New("edit cancelled, no valid changes were saved"))
		}
		after, err := saveEdited(ctx, e, c, t, edited, w)
		if err == nil && after == nil {
			fmt.Fprintln(e.Err, "Edit cancelled, no changes made.")
			return nil
		}
		if err == nil {
			return w.Print(e.Out, t.Kind, after, "edited")
		}
		if ctx.Err() != nil {
			return keepEdited(e, edited, err)
		}
		text, wrong = edited, comment(err)
	}
}

// comment returns an error as comment lines for the edited file.
func comment(err error) string {
	var b strings.Builder
	for _, line := range strings.Split(failure.Describe(err), "\n") {
		b.WriteString("# " + line + "\n")
	}
	return b.String() + "#\n"
}

// saveEdited sends the user's changes and returns the object; nil if there are none.
func saveEdited(ctx context.Context, e *session.Env, c *client.Client, t target.Item, edited []byte,
	w *change.Flags,
) (object.Object, error) {
	parts, err := manifest.Split(bytes.NewReader(edited), "edited")
	if err != nil {
		return nil, err
	}
	if len(parts) != 1 {
		return nil, fmt.Errorf("the file must hold one object, not %d", len(parts))
	}
	changed := t.Kind.New()
	if parts[0].Kind != t.Kind.GetKind() || parts[0].APIVersion != t.Kind.APIVersion() {
		return nil, fmt.Errorf("apiVersion and kind must stay %s and %s", t.Kind.APIVersion(), t.Kind.GetKind())
	}
	if err := manifest.Decode(parts[0].JSON, changed); err != nil {
		return nil, parts[0].Locate(err)
	}
	if changed.GetMetadata().GetName() != t.Name() || changed.GetMetadata().GetNamespace() != t.Namespace() {
		return nil, errors.New("metadata.name and metadata.namespace cannot be changed")
	}
	before, err := manifest.Encode(t.Object)
	if err != nil {
		return nil, err
	}
	after, err := manifest.Encode(changed)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatchUsingLookupPatchMeta(before, after,
		manifest.NewPatchMeta(t.Kind.Message))
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	if w.Client() {
		return changed, nil
	}
	return c.Patch(ctx, t.Kind, t.Namespace(), t.Name(), manifest.StrategicPatch, patch, w.Server())
}

// openEditor opens text below comments in the editor and returns the edited text without the comments.
func openEditor(ctx context.Context, e *session.Env, comments string, text []byte) ([]byte, error) {
	f, err := os.CreateTemp("", "windlass-edit-*.yaml")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(comments + string(text))
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", editor()+` "$1"`, "sh", f.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = e.In, terminal.Raw(e.Out), terminal.Raw(e.Err)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("there was a problem with the editor %q: %w", editor(), err)
	}
	raw, err := os.ReadFile(f.Name())
	if err != nil {
		return nil, err
	}
	return withoutComments(raw), nil
}

func editor() string {
	for _, v := range editorVariables {
		if s := os.Getenv(v); s != "" {
			return s
		}
	}
	return "vi"
}

// withoutComments removes the leading lines that begin with #.
func withoutComments(raw []byte) []byte {
	for bytes.HasPrefix(raw, []byte("#")) {
		_, raw, _ = bytes.Cut(raw, []byte("\n"))
	}
	return raw
}

// keepEdited saves the edited text in a temporary file, prints its path and returns err.
func keepEdited(e *session.Env, edited []byte, err error) error {
	f, err2 := os.CreateTemp("", "windlass-edit-*.yaml")
	if err2 != nil {
		return err
	}
	defer f.Close()
	if _, err2 := f.Write(edited); err2 == nil {
		fmt.Fprintf(e.Err, "A copy of your changes has been stored to %q\n", f.Name())
	}
	return err
}
