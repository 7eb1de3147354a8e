// Package server answers what would happen: which updates a graph offers, and in which order a release would be
// applied. It runs the very functions that the controller runs.
package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
	"github.com/windlass-dev/windlass/services/update-orchestrator/upstream"
)

// Version serves the custom methods of ClusterVersionService.
type Version struct {
	updatev1.UnimplementedClusterVersionServiceServer
	tables  *kinds.Tables
	graphs  *upstream.Source
	arch    string
	control Control

	preflights chan struct{} // holds one for each that runs
	trials     chan struct{} // as above
}

// Control is the controller.
type Control interface {
	// Preflight makes the checks of an update to a release.
	Preflight(context.Context, *updatev1.ClusterVersion, *updatev1.ReleaseReference) (
		*updatev1.PreflightClusterVersionResponse, error)
	// Progress returns how far the pass of a live cluster version is; UNAVAILABLE if this process does not lead.
	Progress(cv *updatev1.ClusterVersion) (*updatev1.PlanClusterVersionRunResponse, error)
	// Foresee returns how far a pass over the objects of a request comes at now.
	Foresee(r *updatev1.PlanClusterVersionRunRequest, now time.Time) *updatev1.PlanClusterVersionRunResponse
	// Try evaluates a query as if it were a rule of a risk; UNAVAILABLE if this process does not lead.
	Try(ctx context.Context, query string) (*updatev1.RuleOutcome, error)
}

// NewVersion returns a server that asks the cluster's upstream where a request brings no graph. arch is as in Go.
func NewVersion(tables *kinds.Tables, graphs *upstream.Source, arch string, control Control) *Version {
	return &Version{
		tables: tables, graphs: graphs, arch: arch, control: control,
		preflights: make(chan struct{}, mostPreflights), trials: make(chan struct{}, mostTrials),
	}
}

const (
	// mostPreflights run at once: each holds a whole release in memory.
	mostPreflights = 2
	preflightLimit = 4 * time.Minute // as of an update
	preflightAgain = 5 * time.Second
	// mostTrials queries are tried at once: the rules of risks wait for the turns that these take.
	mostTrials = 4
)

// PreflightClusterVersion says what would come of an update.
func (s *Version) PreflightClusterVersion(ctx context.Context, req *updatev1.PreflightClusterVersionRequest) (
	*updatev1.PreflightClusterVersionResponse, error,
) {
	have, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil {
		return nil, err
	}
	cv := proto.CloneOf(have)
	if cv.GetSpec() == nil {
		cv.Spec = &updatev1.ClusterVersionSpec{}
	}
	cv.Spec.DesiredUpdate = req.GetDesiredUpdate()
	var faults []object.Fault
	for _, p := range plan.ValidateSpec(cv) {
		if at, ok := strings.CutPrefix(p.Path, "spec.desiredUpdate"); ok {
			faults = append(faults, object.Fault{Path: "desiredUpdate" + at, Description: p.Reason})
		}
	}
	if len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	target := plan.Desired(cv)
	if target == nil {
		return nil, rpcerr.Invalid(object.Fault{Path: "desiredUpdate", Description: "must have a version or an image"})
	}
	select {
	case s.preflights <- struct{}{}:
		defer func() { <-s.preflights }()
	default:
		return nil, rpcerr.TooMany(fmt.Sprintf("%d preflights run already", mostPreflights), preflightAgain)
	}
	ctx, cancel := context.WithTimeout(ctx, preflightLimit)
	defer cancel()
	return s.control.Preflight(ctx, cv, target)
}

// EvaluateClusterVersion says which updates a graph offers to a version, and tries a query.
func (s *Version) EvaluateClusterVersion(ctx context.Context, req *updatev1.EvaluateClusterVersionRequest) (
	*updatev1.EvaluateClusterVersionResponse, error,
) {
	cv, err := s.live(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &updatev1.EvaluateClusterVersionResponse{Version: cv.GetStatus().GetDesired().GetVersion()}
	if err := s.updates(ctx, req, cv, out); err != nil {
		return nil, err
	}
	if req.GetQuery() != "" {
		out.Query, err = s.try(ctx, req.GetQuery())
	}
	return out, err
}

// updates sets all of an answer that follows from a graph.
func (s *Version) updates(ctx context.Context, req *updatev1.EvaluateClusterVersionRequest,
	cv *updatev1.ClusterVersion, out *updatev1.EvaluateClusterVersionResponse,
) error {
	q, arch := plan.Requested(req, cv, s.arch)
	out.AcceptRisks = q.Accept
	if req.GetGraph() == nil { // of another graph nothing is known since a time
		out.Architecture, q.Now = arch, time.Now().UTC().Truncate(time.Second)
	}
	graph, refused, err := s.graph(ctx, req, cv, arch)
	switch {
	case err != nil:
		return err
	case refused != nil:
		out.Conditions = []*metav1.Condition{refused}
		if req.GetWhyNot() != "" {
			out.WhyNot = refused.GetMessage()
		}
		if req.GetPathTo() != "" {
			out.NoPath = refused.GetMessage()
		}
		return nil
	}
	q.Graph = graph
	u := plan.Evaluate(q)
	out.Current, out.AvailableUpdates, out.ConditionalUpdates = u.Current, u.Available, u.Conditional
	out.Conditions = []*metav1.Condition{u.Retrieved}
	if req.GetWhyNot() != "" {
		out.WhyNot = plan.WhyNot(q, req.GetWhyNot())
	}
	if req.GetPathTo() != "" {
		out.Path, out.NoPath = plan.Path(q, req.GetPathTo())
	}
	return nil
}

func (s *Version) try(ctx context.Context, query string) (*updatev1.RuleOutcome, error) {
	select {
	case s.trials <- struct{}{}:
		defer func() { <-s.trials }()
	default:
		return nil, rpcerr.TooMany(fmt.Sprintf("%d queries are tried already", mostTrials), plan.BetweenQueries)
	}
	return s.control.Try(ctx, query)
}

// live returns the cluster's version with what a request wants to be otherwise.
func (s *Version) live(ctx context.Context, req *updatev1.EvaluateClusterVersionRequest) (
	*updatev1.ClusterVersion, error,
) {
	if faults := plan.EvaluateFaults(req); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	// Not the cached one: it may be older than what the caller has just read.
	have, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, err
	}
	cv := &updatev1.ClusterVersion{Spec: &updatev1.ClusterVersionSpec{}, Status: &updatev1.ClusterVersionStatus{
		Desired: &updatev1.ReleaseReference{},
	}}
	proto.Merge(cv, have)
	if req.GetVersion() != "" {
		cv.Status.Desired.Version = proto.String(req.GetVersion())
	}
	if req.GetChannel() != "" {
		cv.Spec.Channel = req.GetChannel()
	}
	if cv.GetStatus().GetDesired().GetVersion() == "" {
		return nil,
			rpcerr.Invalid(object.Fault{Path: "version", Description: "must be given: the cluster's own is not known yet"})
	}
	return cv, nil
}

func (s *Version) graph(ctx context.Context, req *updatev1.EvaluateClusterVersionRequest, cv *updatev1.ClusterVersion,
	arch string,
) (*plan.Graph, *metav1.Condition, error) {
	version := cv.GetStatus().GetDesired().GetVersion()
	if req.GetGraph() == nil {
		g, refused := s.graphs.Graph(ctx, cv.GetSpec(), version, arch)
		return g, refused, ctx.Err()
	}
	g, err := plan.GraphOf(req.GetGraph(), version)
	var wrong plan.Problem
	switch {
	case errors.As(err, &wrong):
		return nil, nil, rpcerr.Invalid(object.Fault{Path: "graph." + wrong.Path, Description: wrong.Reason})
	case err != nil:
		return nil, nil, rpcerr.Invalid(object.Fault{Path: "graph", Description: err.Error()})
	}
	return g, nil, nil
}

// Release serves the custom methods of ReleaseService.
type Release struct {
	updatev1.UnimplementedReleaseServiceServer
	tables *kinds.Tables
	verify Verify
	slots  chan struct{} // holds one for each verification that runs

	contents Contents
	reads    chan struct{} // holds one for each plan that reads a release

	images release.Places
	stores []string
	sends  chan struct{} // holds one for each image that is sent from a layout
	relays chan struct{} // holds one for each image that may be on another host
}

// Contents describes the manifests of releases. It is the controller.
type Contents interface {
	Contents(ctx context.Context, cv *updatev1.ClusterVersion, r *updatev1.Release, removals bool) (
		*updatev1.PlanReleaseResponse, error)
	Draft(r *updatev1.PlanReleaseRequest) (*updatev1.PlanReleaseResponse, []string, error)
}

// Verify is the controller's.
type Verify func(ctx context.Context, cv *updatev1.ClusterVersion, image string) (*updatev1.VerifyReleaseResponse,
	error)

// NewRelease returns a server over the releases that were fetched. It sends images that are in the layouts of images,
// and the signatures in those of the stores that are directories.
func NewRelease(tables *kinds.Tables, verify Verify, contents Contents, images release.Places,
	stores []string,
) *Release {
	return &Release{
		tables: tables, verify: verify, slots: make(chan struct{}, mostPreflights), contents: contents,
		reads:  make(chan struct{}, mostPreflights),
		images: images, stores: stores, sends: make(chan struct{}, mostImages), relays: make(chan struct{}, mostImages),
	}
}

// VerifyRelease says which signatures an image has that count for this cluster.
func (s *Release) VerifyRelease(ctx context.Context, req *updatev1.VerifyReleaseRequest) (
	*updatev1.VerifyReleaseResponse, error,
) {
	cv, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil, rpcerr.TooMany(fmt.Sprintf("%d releases are verified already", mostPreflights), preflightAgain)
	}
	ctx, cancel := context.WithTimeout(ctx, preflightLimit)
	defer cancel()
	return s.verify(ctx, cv, req.GetImage())
}
