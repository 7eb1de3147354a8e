package plans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newRelease(e *session.Env) *cobra.Command {
	f := &flags{}
	req := &updatev1.PlanReleaseRequest{}
	var names, dir string
	cmd := command(e, "release (NAME | --from-dir DIR | --manifests FILE)",
		"Show the manifests of a release, who serves them, and the order in which they are applied", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			if len(f.Names) > 0 {
				return errors.New("specify the manifests with --from-dir DIR, or their names with --manifests FILE, not -f")
			}
			given := 0
			for _, is := range []bool{len(args) == 1, names != "", dir != ""} {
				if is {
					given++
				}
			}
			if given != 1 {
				return errors.New("specify a release, or its manifests with --from-dir DIR, or their names with --manifests FILE")
			}
			if err := releaseRequest(ctx, c, req, args, names, dir); err != nil {
				return err
			}
			resp, err := updatev1.NewReleaseServiceClient(c.Conn()).PlanRelease(ctx, req)
			if err != nil {
				return err
			}
			return answerWhole(e, f, resp, func(p *planText) { p.release(resp) })
		})
	cmd.Flags().StringVar(&names, "manifests", "", "file with the names of manifests, one per line")
	cmd.Flags().StringVar(&dir, "from-dir", "", "directory with the manifests of a release that is not built yet")
	cmd.Flags().StringSliceVar(&req.Jobs, "job", nil, "with --manifests: manifest that holds a job; can be repeated")
	cmd.Flags().StringVar(&req.Mode, "mode", "", "Updating (the default), Initializing or Reconciling")
	cmd.Flags().StringVar(&req.Version, "version", "", "with --from-dir: version of the release")
	cmd.Flags().BoolVar(&req.Removals, "removals", false,
		"also show what the update would remove: the objects of the inventory of the cluster that the release lacks")
	cmd.ValidArgsFunction = target.CompleteNames(e, "release")
	cmd.Aliases = []string{"releases"}
	return cmd
}

// releaseRequest sets which release a request is about. The inventory of the cluster goes along with files, which are
// compared with nothing else.
func releaseRequest(ctx context.Context, c *client.Client, req *updatev1.PlanReleaseRequest, args []string,
	names, dir string,
) error {
	switch {
	case names != "":
		text, err := os.ReadFile(names)
		if err != nil {
			return err
		}
		req.Manifests = strings.Fields(string(text))
		return nil
	case dir == "":
		req.Name = args[0]
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		req.Files = append(req.Files, &updatev1.PlanReleaseRequest_File{Name: entry.Name(), Content: content})
	}
	if len(req.GetFiles()) == 0 {
		return fmt.Errorf("%s: there are no files that end with .yaml, .yml or .json", dir)
	}
	return ofCluster(ctx, c, req)
}

// ofCluster sets what the cluster applies of the files: its capabilities, what it leaves alone, and what its releases
// have brought.
func ofCluster(ctx context.Context, c *client.Client, req *updatev1.PlanReleaseRequest) error {
	cv, err := updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx,
		&updatev1.GetClusterVersionRequest{})
	if err != nil {
		return err
	}
	req.Capabilities, req.Overrides = cv.GetSpec().GetCapabilities(), cv.GetSpec().GetOverrides()
	if !req.GetRemovals() {
		return nil
	}
	releases, err := updatev1.NewReleaseServiceClient(c.Conn()).ListReleases(ctx, &updatev1.ListReleasesRequest{})
	if err != nil {
		return err
	}
	for _, r := range releases.GetItems() {
		if image := cv.GetStatus().GetDesired().GetImage(); image != "" && r.GetSpec().GetImage() == image {
			req.Inventory = r.GetStatus().GetInventory()
			return nil
		}
	}
	return errors.New("the cluster has no release, and so no inventory to compare with")
}

func (p *planText) release(r *updatev1.PlanReleaseResponse) {
	p.printf("Mode:      %s\n", table.OrNone(r.GetMode()))
	if r.GetContentsUnknown() != "" {
		p.printf("Manifests: only their names are known: %s\n", r.GetContentsUnknown())
	} else {
		p.printf("Manifests: %d, and %d excluded\n", r.GetManifestCount(), r.GetExcludedCount())
	}
	p.printf("\n")
	files := map[string][]*updatev1.ReleaseManifest{}
	for _, m := range r.GetManifests() {
		files[m.GetFile()] = append(files[m.GetFile()], m)
	}
	rows := [][]string{{"STEP", "LEVEL", "COMPONENT", "MANIFEST", "OBJECT", "SERVICE", "NOTES"}}
	for i, s := range r.GetSteps() {
		for _, c := range s.GetChains() {
			for _, file := range c.GetManifests() {
				place := []string{fmt.Sprint(i + 1), table.OrNone(s.GetRunLevel()), table.OrNone(c.GetComponent()), file}
				of := files[file]
				if len(of) == 0 {
					notes := ""
					if s.GetJob() {
						notes = "job, once for the release"
					}
					rows = append(rows, append(place, table.None, table.None, table.OrNone(notes)))
				}
				for _, m := range of {
					if m.GetExcluded() == "" {
						rows = append(rows, append(place[:4:4], printer.Reference(m.GetObject()), table.OrNone(m.GetService()),
							table.OrNone(manifestNotes(m))))
					}
				}
			}
		}
	}
	p.table(rows)
	p.unparsed(r.GetUnparsed())
	if r.GetContentsUnknown() != "" {
		return
	}
	var excluded [][]string
	for _, m := range r.GetManifests() {
		if m.GetExcluded() != "" {
			excluded = append(excluded, []string{m.GetFile(), printer.Reference(m.GetObject()), m.GetExcluded()})
		}
	}
	p.section("Excluded", []string{"MANIFEST", "OBJECT", "REASON"}, excluded)
	var unserved [][]string
	for _, k := range r.GetUnserved() {
		unserved = append(unserved, []string{k.GetApiVersion(), k.GetKind(), fmt.Sprint(k.GetCount())})
	}
	p.section("Kinds that no service owns: kept, and nothing acts on them", []string{"APIVERSION", "KIND", "MANIFESTS"},
		unserved)
	if r.RemovalCount == nil {
		return
	}
	var removals [][]string
	for _, l := range r.GetRemovals() {
		stays := "removed"
		if l.GetReason() != "" {
			stays = "stays: " + l.GetReason()
		}
		removals = append(removals, []string{
			printer.Reference(l.GetObject()), table.OrNone(l.GetObject().GetNamespace()),
			stays,
		})
	}
	p.section("Objects that the release lacks", []string{"OBJECT", "NAMESPACE", "AT THE END"}, removals)
}

// section prints a table with a heading, or that it has no rows.
func (p *planText) section(heading string, head []string, rows [][]string) {
	if len(rows) == 0 {
		p.printf("\n%s: none\n", heading)
		return
	}
	p.printf("\n%s:\n", heading)
	p.table(append([][]string{head}, rows...))
}

func (p *planText) unparsed(names []string) {
	if len(names) == 0 {
		return
	}
	p.printf("\nNames without a run level and component:\n")
	for _, n := range names {
		p.printf("* %s\n", n)
	}
}

// manifestNotes says what is special about a manifest.
func manifestNotes(m *updatev1.ReleaseManifest) string {
	var out []string
	for _, n := range []struct {
		is   bool
		text string
	}{
		{m.GetJob() && !m.GetRan(), "job, once for the release"},
		{m.GetJob() && m.GetRan(), "job, which ran"},
		{m.GetDeletion(), "deletes the object"},
		{m.GetCreateOnly(), "created only"},
		{m.GetClusterOperator(), "waited for"},
		{m.GetUnmanaged(), "left alone by spec.overrides"},
	} {
		if n.is {
			out = append(out, n.text)
		}
	}
	return strings.Join(out, ", ")
}
