package plans

import (
	"context"
	"fmt"
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
	q := &releaseQuestion{flags: f}
	cmd := command(e, "release (NAME | --from-dir DIR [-f FILE] | --manifests FILE)",
		"Show the manifests of a release, who serves them, and the order in which they are applied", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			if err := q.check(args); err != nil {
				return err
			}
			req, err := q.request(ctx, e, c, args)
			if err != nil {
				return err
			}
			resp, err := updatev1.NewReleaseServiceClient(c.Conn()).PlanRelease(ctx, req)
			if err != nil {
				return err
			}
			return answerWhole(e, f, resp, func(p *planText) { p.release(resp) })
		})
	cmd.Long = cmd.Short + `.

With --from-dir, the manifests are planned for the cluster: by the capabilities and overrides of its
ClusterVersion, and with --removals by the inventory of its present release. With -f they are planned
for the objects of a file instead, and for nothing of the cluster: a ClusterVersion, of which
spec.capabilities and spec.overrides count, and a Release, of which status.inventory counts.
--baseline-capability-set, --additional-enabled-capabilities and --override each replace what the
ClusterVersion has.`
	cmd.Example = `  windlass plan release 1.1.0-1f2e3d4c5b6a --removals
  windlass plan release --from-dir manifests/ --version 1.2.0 --removals
  windlass plan release --from-dir manifests/ --baseline-capability-set None --additional-enabled-capabilities Console
  windlass plan release --from-dir manifests/ --override deployment/beacon -n windlass-beacon
  windlass get clusterversion version -o yaml > version.yaml
  windlass get release 1.1.0-1f2e3d4c5b6a -o yaml > release.yaml
  windlass plan release --from-dir manifests/ --version 1.2.0 --removals -f version.yaml,release.yaml`
	cmd.Flags().StringVar(&q.names, "manifests", "", "file with the names of manifests, one per line")
	cmd.Flags().StringVar(&q.dir, "from-dir", "", "directory with the manifests of a release that is not built yet")
	cmd.Flags().StringSliceVar(&q.jobs, "job", nil, "with --manifests: manifest that holds a job; can be repeated")
	cmd.Flags().StringVar(&q.mode, "mode", "", "Updating (the default), Initializing or Reconciling")
	cmd.Flags().StringVar(&q.version, "version", "", "with --from-dir: version of the release")
	cmd.Flags().BoolVar(&q.removals, "removals", false,
		"also show what the update would remove: the objects of the inventory of the cluster that the release lacks")
	cmd.Flags().StringVar(&q.baseline, "baseline-capability-set", "",
		"with --from-dir: None or vCurrent, instead of the set in spec.capabilities")
	cmd.Flags().StringSliceVar(&q.additional, "additional-enabled-capabilities", nil,
		"with --from-dir: names of capabilities, instead of those in spec.capabilities")
	cmd.Flags().StringArrayVar(&q.overrides, "override", nil,
		"with --from-dir: TYPE/NAME of an object to leave alone, in the namespace of -n, instead of those in "+
			"spec.overrides; can be repeated")
	cmd.Flags().Lookup(
		"filename").Usage = "with --from-dir: file or - with a ClusterVersion and a Release to plan for, instead of those of the cluster"
	cmd.ValidArgsFunction = target.CompleteNames(e, "release")
	cmd.Aliases = []string{"releases"}
	return cmd
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
