package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

// accessRights are those by which the policy and the bearer tokens are changed. Who changes them keeps these, unless
// forced.
var accessRights = []identity.Attributes{
	{Verb: "update", Group: "windlass.dev", Resource: "hosts/access"},
	{Verb: "get", Group: "windlass.dev", Resource: "hosts/access"},
	{Verb: "plan", Group: "windlass.dev", Resource: "hosts"},
}

// access returns all that decisions about the policy and the bearer tokens depend on, and the revision of the record.
func (s *Hosts) access(ctx context.Context) (plan.AccessView, int64, error) {
	a, revision, err := s.Records.Access(ctx)
	return plan.AccessView{Now: s.Now(), Access: a, Leader: s.Host}, revision, err
}

// GetClusterAccess returns the policy and the bearer tokens.
func (s *Hosts) GetClusterAccess(ctx context.Context, _ *hostv1.GetClusterAccessRequest) (*hostv1.ClusterAccess,
	error,
) {
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	v, _, err := s.access(ctx)
	if err == nil && v.Access == nil {
		err = rpcerr.NotFound("ClusterAccess", "cluster")
	}
	return v.Access, err
}

// SetClusterAccess changes the policy, the bearer tokens, or both.
func (s *Hosts) SetClusterAccess(ctx context.Context, r *hostv1.SetClusterAccessRequest) (*hostv1.ClusterAccess,
	error,
) {
	if r.Policy == nil && r.Tokens == nil {
		return nil, rpcerr.Invalid(object.Fault{Path: "policy", Description: "is required, or tokens"})
	}
	if err := checkAccess(r.Policy, r.Tokens); err != nil {
		return nil, err
	}
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	caller, _ := identity.CallerFrom(ctx)
	var refusal error // of this request, which another try does not change
	changed := false
	out, err := records.Again(func() (*hostv1.ClusterAccess, error) {
		v, revision, err := s.access(ctx)
		if err != nil {
			return nil, err
		}
		next, err := plan.SetAccess(v, s.Records.Hosts.All(), r, hashOf(r.GetPolicy()), hashOf(r.GetTokens()), caller.User)
		if err == nil && r.Policy != nil && !r.GetForce() {
			err = keepsRights(v.Access, r, caller)
		}
		if refusal = err; refusal != nil {
			return nil, nil
		}
		if changed = !proto.Equal(next, v.Access); !changed {
			return next, nil
		}
		return next, s.Records.PutAccess(ctx, next, revision)
	})
	var why *plan.AccessRefusal
	switch {
	case errors.As(refusal, &why) && why.Outdated:
		return nil, rpcerr.Conflict("ClusterAccess", "cluster", why.Text)
	case errors.As(refusal, &why):
		return nil, refused("access", why.Text)
	case refusal != nil:
		return nil, refusal
	case err != nil:
		return nil, err
	}
	if changed {
		s.accessChanged(ctx, out, caller)
	}
	return out, nil
}

// accessChanged records who changed the policy or the tokens, in the events of the hosts that get them.
func (s *Hosts) accessChanged(ctx context.Context, a *hostv1.ClusterAccess, caller identity.Caller) {
	var changes []string
	if a.GetPolicyGeneration() == a.GetGeneration() {
		changes = append(changes, "the policy changed, SHA-256 "+a.GetPolicyHash())
	}
	if a.GetTokensGeneration() == a.GetGeneration() {
		changes = append(changes, "the bearer tokens changed, SHA-256 "+a.GetTokensHash())
	}
	what := cmp.Or(strings.Join(changes, ", "), "confirmed as they are")
	for _, h := range s.Records.Hosts.All() {
		if plan.HasAuthorities(h) {
			s.event(ctx, h, events.Normal, "AccessChanged",
				fmt.Sprintf("The host gets generation %d of the policy and the bearer tokens (%s)", a.GetGeneration(), what), "")
		}
	}
	s.Log.InfoContext(ctx, "policy or bearer tokens of the hosts changed", "generation", a.GetGeneration(), "user",
		caller.User, "policy", a.GetPolicyHash(), "tokens", a.GetTokensHash())
}

// checkAccess returns the error of texts that programs could not use; nil is none.
func checkAccess(policy, tokens *string) error {
	var faults []object.Fault
	if policy != nil {
		if err := identity.CheckPolicy([]byte(*policy)); err != nil {
			faults = append(faults, object.Faultf("policy", "%v", err))
		}
	}
	if tokens != nil {
		if _, err := identity.ParseTokens([]byte(*tokens)); err != nil {
			faults = append(faults, object.Faultf("tokens", "%v", err))
		}
	}
	if len(faults) > 0 {
		return rpcerr.Invalid(faults...)
	}
	return nil
}

// keepsRights returns an error if a policy takes the right to change it from the caller, or a right from programs.
func keepsRights(is *hostv1.ClusterAccess, r *hostv1.SetClusterAccessRequest, caller identity.Caller) error {
	lost, err := identity.LostRights([]byte(is.GetPolicy()), []byte(r.GetPolicy()), caller, accessRights...)
	if err != nil || len(lost) == 0 {
		return err
	}
	return refused("policy", "the policy takes rights from you or from the programs of the cluster: "+
		identity.ListLost(lost)+"; set force to apply it nevertheless")
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// PlanClusterAccess returns which policy and bearer tokens the hosts have.
func (s *Hosts) PlanClusterAccess(ctx context.Context, _ *hostv1.PlanClusterAccessRequest) (
	*hostv1.PlanClusterAccessResponse, error,
) {
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	v, _, err := s.access(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Records.Hosts.CatchUp(ctx); err != nil {
		return nil, err
	}
	out := &hostv1.PlanClusterAccessResponse{}
	out.Hosts, out.WaitsFor = plan.AccessOnHosts(v, s.Records.Hosts.All())
	if v.Access != nil {
		out.Access = proto.CloneOf(v.Access)
		out.Access.Policy, out.Access.Tokens = "", ""
	}
	return out, nil
}

// SyncAccess stores the report of a host, and returns what its files must have.
func (s *Hosts) SyncAccess(ctx context.Context, r *hostv1.SyncAccessRequest) (*hostv1.SyncAccessResponse, error) {
	ctx, h, err := s.itself(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	if !plan.HasAuthorities(h) {
		return nil, rpcerr.Forbidden(fmt.Sprintf("host %q is a worker, which has no policy", r.GetName()))
	}
	v, revision, err := s.access(ctx)
	if err != nil {
		return nil, err
	}
	step := plan.SyncAccess(v, h, r)
	if step.Reason != "" { // first, since after the report is stored it is said no more; twice is no harm
		typ := events.Warning
		if step.Normal {
			typ = events.Normal
		}
		s.Events.Event(h, typ, step.Reason, step.Message)
		s.Log.WarnContext(ctx, "the files of a host differ from the policy and tokens of the cluster", "host", r.GetName(),
			"reason", step.Reason, "message", step.Message)
	}
	if !proto.Equal(step.Status, h.GetStatus().GetAccess()) {
		if !s.Agents.Stores(r.GetName()) {
			return nil, rpcerr.TooMany(fmt.Sprintf("host %q reports its policy too often", r.GetName()), retryAgent)
		}
		if _, err = s.Records.Change(ctx, r.GetName(), h.GetMetadata().GetUid(),
			func(h *hostv1.Host) (records.Change, error) {
				status := object.Clone(h).GetStatus()
				status.Access = step.Status
				return records.Change{Status: status}, nil
			}); err != nil {
			return nil, err
		}
		if err := s.Records.Hosts.CatchUp(ctx); err != nil { // the next report is compared with this one
			return nil, err
		}
	}
	if step.Record {
		if v.Access, err = s.recordAccess(ctx, r, revision); err != nil {
			return nil, err
		}
	}
	out := &hostv1.SyncAccessResponse{
		Generation: v.Access.GetGeneration(), PolicyHash: v.Access.GetPolicyHash(), TokensHash: v.Access.GetTokensHash(),
		Wanted: step.Wanted,
	}
	if step.Give && r.GetAccess().GetPolicyHash() != out.GetPolicyHash() {
		out.Policy = &v.Access.Policy
	}
	if step.Give && r.GetAccess().GetTokensHash() != out.GetTokensHash() {
		out.Tokens = &v.Access.Tokens
	}
	return out, nil
}

// recordAccess makes the first record from the files of a host.
func (s *Hosts) recordAccess(ctx context.Context, r *hostv1.SyncAccessRequest, revision int64) (*hostv1.ClusterAccess,
	error,
) {
	if err := checkAccess(r.Policy, r.Tokens); err != nil {
		return nil, err
	}
	first := plan.FirstAccess(r.GetName(), r.GetPolicy(), hashOf(r.GetPolicy()), r.GetTokens(), hashOf(r.GetTokens()),
		s.Now())
	err := s.Records.PutAccess(ctx, first, revision)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) {
		return nil, rpcerr.Conflict("ClusterAccess", "cluster", "it was recorded just now")
	}
	if err == nil {
		s.Log.InfoContext(ctx, "policy and bearer tokens recorded from the files of a host", "host", r.GetName(), "policy",
			first.GetPolicyHash(), "tokens", first.GetTokensHash())
	}
	return first, err
}
