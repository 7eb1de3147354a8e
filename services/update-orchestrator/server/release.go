package server

import (
	"context"
	"fmt"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// PlanRelease returns the order in which the manifests of a release are applied, and what is known of each.
func (s *Release) PlanRelease(ctx context.Context, req *updatev1.PlanReleaseRequest) (*updatev1.PlanReleaseResponse,
	error,
) {
	if faults := releaseFaults(req); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	out, names, jobs, err := s.manifests(ctx, req)
	if err != nil {
		return nil, err
	}
	mode := plan.Updating
	if req.GetMode() != "" {
		mode = plan.Mode(req.GetMode())
	}
	steps, unparsed := plan.TaskGraph(names, jobs, mode)
	out.Unparsed, out.Mode = unparsed, string(mode)
	for _, step := range steps {
		to := &updatev1.PlanReleaseResponse_Step{RunLevel: step.RunLevel, Job: step.Job}
		for _, c := range step.Chains {
			to.Chains = append(to.Chains, &updatev1.PlanReleaseResponse_Chain{Component: c.Component, Manifests: c.Manifests})
		}
		out.Steps = append(out.Steps, to)
	}
	return out, nil
}

// manifests returns what is known of the manifests of a request, the names of their files in load order, and which of
// these hold a Job.
func (s *Release) manifests(ctx context.Context, req *updatev1.PlanReleaseRequest) (out *updatev1.PlanReleaseResponse,
	names []string, jobs map[string]bool, err error,
) {
	if len(req.GetManifests()) > 0 {
		jobs = map[string]bool{}
		for _, name := range req.GetJobs() {
			jobs[name] = true
		}
		return &updatev1.PlanReleaseResponse{ContentsUnknown: "only the names of the manifests are given"},
			req.GetManifests(), jobs, nil
	}
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	default:
		return nil, nil, nil, rpcerr.TooMany(fmt.Sprintf("%d releases are read already", mostPreflights), preflightAgain)
	}
	if req.GetName() == "" {
		if out, names, err = s.contents.Draft(req); err != nil {
			return nil, nil, nil, err
		}
		return out, names, plan.JobFiles(out.GetManifests()), nil
	}
	r, err := s.tables.Releases.Get(ctx, "", req.GetName())
	if err != nil {
		return nil, nil, nil, err
	}
	cv, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, nil, nil, err
	}
	if out, err = s.contents.Contents(ctx, cv, r, req.GetRemovals()); err != nil {
		return nil, nil, nil, err
	}
	jobs = plan.JobFiles(out.GetManifests())
	if out.GetContentsUnknown() != "" {
		for _, j := range r.GetStatus().GetJobs() {
			jobs[j.GetManifest()] = true
		}
	}
	return out, r.GetStatus().GetManifests(), jobs, nil
}

// releaseFaults returns what is wrong with a request: a release is live or given in one way, never mixed.
func releaseFaults(req *updatev1.PlanReleaseRequest) (out []object.Fault) {
	fault := func(wrong bool, path, description string) {
		if wrong {
			out = append(out, object.Fault{Path: path, Description: description})
		}
	}
	live, named, files := req.GetName() != "", len(req.GetManifests()) > 0, len(req.GetFiles()) > 0
	fault(live && named, "manifests", "cannot be given together with the name of a release")
	fault(files && (live || named), "files", "cannot be given together with the name of a release or manifests")
	fault(!live && !named && !files, "name", "must be given, or manifests, or files")
	for _, f := range []struct {
		path  string
		given bool
	}{
		{"version", req.GetVersion() != ""},
		{"inventory", len(req.GetInventory()) > 0},
		{"capabilities", req.GetCapabilities() != nil},
		{"overrides", len(req.GetOverrides()) > 0},
	} {
		fault(f.given && !files, f.path, "is only allowed together with files")
	}
	fault(len(req.GetInventory()) > 0 && !req.GetRemovals(), "inventory", "is only allowed together with removals")
	fault(req.GetRemovals() && named, "removals", "are not known of names of manifests")
	for _, f := range plan.CapabilityFaults(req.GetCapabilities()) {
		fault(true, "capabilities.baselineCapabilitySet", f.Description)
	}
	for i, name := range req.GetJobs() {
		fault(live || files || !slices.Contains(req.GetManifests(), name), fmt.Sprintf("jobs[%d]", i),
			"must be one of the manifests that are given")
	}
	return out
}
