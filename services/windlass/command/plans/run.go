package plans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// planRun shows how far the pass over the manifests of a release is. release is the file with the manifests of given
// objects, and now the time to plan them for; they may be empty.
func planRun(ctx context.Context, e *session.Env, f *flags, c *client.Client, release, now string) error {
	req := &updatev1.PlanClusterVersionRunRequest{}
	if err := onlyGiven(release, now, len(f.Names) > 0); err != nil {
		return err
	}
	var err error
	if req.Now, err = planTime(now); err != nil {
		return err
	}
	if len(f.Names) > 0 {
		g, err := readGiven(e, f, "ClusterVersion", "ClusterOperator", "MaintenanceWindow")
		if err != nil {
			return err
		}
		if req.ClusterVersion, err = one[*updatev1.ClusterVersion](g); err != nil {
			return err
		}
		req.ClusterOperators = all[*updatev1.ClusterOperator](g)
		req.MaintenanceWindows = all[*updatev1.MaintenanceWindow](g)
	}
	if release != "" {
		text, err := os.ReadFile(release)
		if err != nil {
			return err
		}
		var of updatev1.PlanReleaseResponse
		if err := protojson.Unmarshal(text, &of); err != nil {
			return fmt.Errorf("%s: %w", release, err)
		}
		req.Manifests = of.GetManifests()
		for _, r := range of.GetRemovals() {
			if r.GetReason() == "" {
				req.Removed = append(req.Removed, r.GetObject())
			}
		}
	}
	resp, err := updatev1.NewClusterVersionServiceClient(c.Conn()).PlanClusterVersionRun(ctx, req)
	if err != nil {
		return err
	}
	at := time.Now()
	if req.GetNow() != nil {
		at = req.GetNow().AsTime()
	}
	return answerWhole(e, f, resp, func(p *planText) { p.run(resp, at) })
}

// onlyGiven returns an error if flags about given objects are used without these.
func onlyGiven(release, now string, given bool) error {
	switch {
	case release != "" && !given:
		return errors.New("--release is only allowed together with --run and -f")
	case now != "" && !given:
		return errors.New("--now is only allowed together with --run and -f")
	}
	return nil
}

// run prints how far a pass is at now: where it is, each manifest, and what is waited for.
func (p *planText) run(r *updatev1.PlanClusterVersionRunResponse, now time.Time) {
	p.printf("Version:  %s\nMode:     %s\nProgress: %s\n", table.OrNone(r.GetVersion()), table.OrNone(r.GetMode()),
		runProgress(r, now))
	if r.GetPaused() != "" {
		p.printf("Held:     updates are %s\n", r.GetPaused())
	}
	if len(r.GetSteps()) > 0 {
		p.printf("\n")
		p.table(runRows(r))
	}
	p.waits(r, now)
	if next := r.GetNext(); len(next) > 0 {
		var names []string
		for _, o := range next {
			names = append(names, printer.Reference(o))
		}
		p.printf("\nNext: %s\n", strings.Join(names, ", "))
	}
	p.steps = 1 // so that end does not say that there is nothing to do
	p.end(r.GetHeldBack(), "", nil)
}

// runProgress says in one line how far a pass is.
func runProgress(r *updatev1.PlanClusterVersionRunResponse, now time.Time) string {
	line := fmt.Sprintf("%d of %d manifests", r.GetDone(), r.GetTotal())
	switch {
	case len(r.GetSteps()) == 0:
		return line + "; no pass has begun"
	case r.GetCompleted():
		line = "everything is applied"
	case r.GetCurrentStep() > 0:
		line += fmt.Sprintf(", step %d of %d", r.GetCurrentStep(), len(r.GetSteps()))
	}
	if r.GetEnded() && !r.GetCompleted() {
		line += ", the pass has failed"
	}
	if t := r.GetNextPassTime(); t != nil {
		line += fmt.Sprintf("; the next pass begins in %s", max(0, t.AsTime().Sub(now)).Round(time.Second))
	}
	return line
}

// runRows are the manifests of a pass as a table.
func runRows(r *updatev1.PlanClusterVersionRunResponse) [][]string {
	rows := [][]string{{"STEP", "LEVEL", "COMPONENT", "STATE", "OBJECT", "MANIFEST"}}
	for i, s := range r.GetSteps() {
		for _, c := range s.GetChains() {
			for _, m := range c.GetManifests() {
				rows = append(rows, []string{
					fmt.Sprint(i + 1), table.OrNone(s.GetRunLevel()), table.OrNone(c.GetComponent()), m.GetState(),
					printer.Reference(m.GetObject()), table.OrNone(m.GetFile()),
				})
			}
		}
	}
	return rows
}

// waits prints what is waited for and what has failed, since when, and what resolves it.
func (p *planText) waits(r *updatev1.PlanClusterVersionRunResponse, now time.Time) {
	headed := false
	for _, s := range r.GetSteps() {
		for _, c := range s.GetChains() {
			for _, m := range c.GetManifests() {
				if m.GetResolution() == "" {
					continue
				}
				if !headed {
					p.printf("\nWaits and failures:\n")
					headed = true
				}
				p.wait(m, now)
			}
		}
	}
}

func (p *planText) wait(m *updatev1.PlanClusterVersionRunResponse_Manifest, now time.Time) {
	inside := strings.NewReplacer("\n", "\n    ") // of others' texts
	p.printf("  - %s: %s\n", printer.Reference(m.GetObject()), inside.Replace(m.GetMessage()))
	if w := m.GetWait(); w != nil {
		p.printf("    %s\n", inside.Replace(w.GetFact()))
		if w.GetObserved() != "" && w.GetObserved() != m.GetMessage() {
			p.printf("    seen: %s\n", inside.Replace(w.GetObserved()))
		}
		p.printf("    for %s so far\n", table.Age(w.GetSince(), now))
	}
	p.printf("    %s\n", m.GetResolution())
}
