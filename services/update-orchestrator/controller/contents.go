package controller

import (
	"context"
	"errors"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Contents describes the manifests of a live release, whose image is read from where it is kept alone: of a release
// that is not, it says that only the names are known. With removals, it says what the update to the release would
// remove. It changes nothing, and may be called by any replica.
func (c *Controller) Contents(ctx context.Context, cv *updatev1.ClusterVersion, r *updatev1.Release, removals bool) (
	*updatev1.PlanReleaseResponse, error,
) {
	if err := c.Tables.Releases.CatchUp(ctx); err != nil {
		return nil, err
	}
	image, err := c.Payloads.Open(ctx, r.GetSpec().GetImage())
	if errors.Is(err, store.ErrNotFound) {
		why := "only the present release and the one before it are"
		if kept := plan.Find(r.GetStatus().GetConditions(), keptType); kept.GetMessage() != "" {
			why = kept.GetMessage()
		}
		return &updatev1.PlanReleaseResponse{
			ContentsUnknown: fmt.Sprintf("the image of release %s is not kept here: %s", r.GetStatus().GetVersion(), why),
		}, nil
	}
	if err != nil {
		return nil, err
	}
	l, err := c.load(image)
	if err != nil {
		return nil, err
	}
	present := plan.SameImage(r.GetSpec().GetImage(), cv.GetStatus().GetDesired().GetImage())
	before := c.inventory(cv.GetStatus().GetDesired().GetImage())
	enabled := cv.GetStatus().GetCapabilities().GetEnabledCapabilities()
	if !present || cv.GetStatus().GetCapabilities() == nil {
		enabled = l.enables(cv, enabled, before).GetEnabledCapabilities()
	}
	out := c.contents(l.with(enabled), cv.GetSpec().GetOverrides(), r.GetStatus().GetJobs())
	if removals && before != nil {
		plan.AddRemovals(out, before, l.with(enabled).wants(), cv.GetSpec().GetOverrides(), apply.Services())
	}
	return out, nil
}

// Draft describes the manifests of the files of a request, and returns their names in load order. Its error says what
// is wrong with them.
func (c *Controller) Draft(r *updatev1.PlanReleaseRequest) (*updatev1.PlanReleaseResponse, []string, error) {
	var files []release.File
	for _, f := range r.GetFiles() {
		files = append(files, release.File{Name: f.GetName(), Content: f.GetContent()})
	}
	payload, err := release.Draft(r.GetVersion(), files)
	if err != nil {
		return nil, nil, invalidFiles(err)
	}
	tasks, err := c.Applier.Prepare(payload)
	if err != nil {
		return nil, nil, invalidFiles(err)
	}
	l := &loaded{payload: payload, all: tasks}
	cv := &updatev1.ClusterVersion{Spec: &updatev1.ClusterVersionSpec{Capabilities: r.GetCapabilities()}}
	l = l.with(l.enables(cv, nil, r.GetInventory()).GetEnabledCapabilities())
	out := c.contents(l, r.GetOverrides(), nil)
	if r.GetRemovals() {
		plan.AddRemovals(out, r.GetInventory(), l.wants(), r.GetOverrides(), apply.Services())
	}
	return out, payload.FileNames(), nil
}

func invalidFiles(err error) error {
	return rpcerr.Invalid(object.Fault{Path: "files", Description: err.Error()})
}

// contents describes all manifests of a release with the capabilities that are enabled.
func (c *Controller) contents(l *loaded, overrides []*updatev1.ComponentOverride, jobs []*updatev1.ReleaseJob,
) *updatev1.PlanReleaseResponse {
	described := map[string]*updatev1.ReleaseManifest{}
	for _, t := range l.all {
		m := t.Describe()
		m.Unmanaged, m.Ran = unmanaged(overrides, t), t.Job() && plan.Ran(jobs, t.Object())
		m.Excluded = plan.MissingCapabilities(t.Capabilities(), l.enabled)
		described[id(t)] = m
	}
	excluded := c.Applier.Excluded(l.payload)
	var all []*updatev1.ReleaseManifest
	for _, m := range l.payload.Manifests {
		d := described[fmt.Sprintf("%s#%06d", m.File, m.Document)]
		if d == nil {
			d = &updatev1.ReleaseManifest{File: m.File, Excluded: excluded(m), Object: &metav1.ObjectReference{
				ApiVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace, Name: m.Name,
			}}
		}
		all = append(all, d)
	}
	return plan.ContentsOf(all, l.unserved())
}
