package adm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// mostListed are how many objects a preflight lists; it says how many more there are.
const mostListed = 20

// preflight shows what would come of an update. It is an error if the update would be refused.
func preflight(ctx context.Context, e *session.Env, c *client.Client, wanted chosen, f upgradeFlags) error {
	d := &updatev1.DesiredUpdate{Force: proto.Bool(f.force)}
	if wanted.version != "" {
		d.Version = proto.String(wanted.version)
	}
	if wanted.image != "" {
		d.Image = proto.String(wanted.image)
	}
	for _, w := range f.waivers() {
		d.Waive = append(d.Waive, &updatev1.WaivedCheck{Name: w.name, Reason: w.reason})
	}
	r, err := updatev1.NewClusterVersionServiceClient(c.Conn()).PreflightClusterVersion(ctx,
		&updatev1.PreflightClusterVersionRequest{DesiredUpdate: d})
	if err != nil {
		return err
	}
	if err := showPreflight(e.Out, r); err != nil {
		return err
	}
	if !r.GetAccepted() {
		return errors.New("the update would be refused")
	}
	return nil
}

func showPreflight(out io.Writer, r *updatev1.PreflightClusterVersionResponse) error {
	rows := [][]string{{"CHECK", "RESULT", "REASON"}}
	for _, c := range r.GetChecks() {
		rows = append(rows, []string{c.GetName(), c.GetResult(), table.OrNone(c.GetReason())})
	}
	fmt.Fprintf(out, "Update to %s (dry run: nothing is changed)\n\n", printer.Update(r.GetRelease().GetVersion(),
		r.GetRelease().GetImage()))
	if err := table.New(out).Print(rows...); err != nil {
		return err
	}
	for _, c := range r.GetChecks() {
		if c.GetMessage() != "" {
			fmt.Fprintf(out, "\n%s: %s\n", c.GetName(), c.GetMessage())
		}
	}
	if r.ManifestCount == nil {
		return nil // it was not read
	}
	fmt.Fprintf(out, "\nManifests: %d\n", r.GetManifestCount())
	listed(out, "Objects that no release has brought yet", r.GetAdded())
	listed(out, "Objects that the release lacks: removed at the end, unless something keeps them", r.GetRemoved())
	var jobs []*metav1.ObjectReference
	for _, j := range r.GetJobs() {
		jobs = append(jobs, j.GetObject())
	}
	listed(out, "Jobs", jobs)
	for _, k := range r.GetUnserved() {
		fmt.Fprintf(out, "%d manifests of kind %s (%s) are kept, and no service acts on them.\n", k.GetCount(), k.GetKind(),
			k.GetApiVersion())
	}
	if names := r.GetEnabledCapabilities(); len(names) > 0 {
		fmt.Fprintf(out, "Enabled capabilities: %s\n", strings.Join(names, ", "))
	}
	return nil
}

func listed(out io.Writer, what string, objects []*metav1.ObjectReference) {
	if len(objects) == 0 {
		return
	}
	fmt.Fprintf(out, "%s (%d):\n", what, len(objects))
	for i, o := range objects {
		if i == mostListed {
			fmt.Fprintf(out, "  and %d more\n", len(objects)-i)
			break
		}
		name := o.GetName()
		if o.GetNamespace() != "" {
			name = o.GetNamespace() + "/" + name
		}
		fmt.Fprintf(out, "  %s %s\n", o.GetKind(), name)
	}
}
