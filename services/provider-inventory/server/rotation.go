package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

// renewalIDs is the form of the IDs of renewals.
const renewalIDs = "20060102T150405.000000000Z"

// RenewHostCertificates asks a host to renew its certificates.
func (s *Hosts) RenewHostCertificates(ctx context.Context, r *hostv1.RenewHostCertificatesRequest) (*hostv1.Host,
	error,
) {
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return s.Records.Change(ctx, r.GetName(), "", func(h *hostv1.Host) (records.Change, error) {
		status := object.Clone(h).GetStatus()
		at := s.Now().UTC()
		// A later request has a later ID, also of another leader with another clock.
		if last, err := time.Parse(renewalIDs, status.GetRenewalId()); err == nil && !at.After(last) {
			at = last.Add(time.Nanosecond)
		}
		status.RenewalId = new(at.Format(renewalIDs))
		return records.Change{Status: status}, nil
	})
}

// rotation returns all that decisions about the rotation depend on, and the revision of its record.
func (s *Hosts) rotation(ctx context.Context) (plan.RotationView, int64, error) {
	r, revision, err := s.Records.Rotation(ctx)
	return plan.RotationView{
		Now: s.Now(), Rotation: r, Hosts: s.Records.Hosts.All(), Unreadable: s.Records.Unreadable(),
	}, revision, err
}

// StartRotation begins a rotation, or moves its goal.
func (s *Hosts) StartRotation(ctx context.Context, r *hostv1.StartRotationRequest) (*hostv1.Rotation, error) {
	begun, err := s.begun(r)
	if err != nil {
		return nil, err
	}
	if ctx, err = s.current(ctx); err != nil {
		return nil, err
	}
	out, err := records.Again(func() (*hostv1.Rotation, error) {
		v, revision, err := s.rotation(ctx)
		if err != nil {
			return nil, err
		}
		next, err := plan.Begin(v, r.GetAuthority(), r.GetGoal(), begun)
		if refusal := new(plan.RotationRefusal); errors.As(err, &refusal) {
			return nil, refused("rotation", refusal.Text)
		}
		if err != nil || proto.Equal(next, v.Rotation) {
			return next, err
		}
		return next, s.Records.PutRotation(ctx, next, revision)
	})
	return shown(out), err
}

// begun returns the rotation that a request begins; nil if it has no next authority.
func (s *Hosts) begun(r *hostv1.StartRotationRequest) (*hostv1.Rotation, error) {
	if len(r.GetNextCertificate()) == 0 {
		return nil, nil
	}
	both, err := identity.TrustHash(append(append([]byte{}, r.GetCertificate()...), r.GetNextCertificate()...))
	if err != nil {
		return nil, rpcerr.Invalid(object.Faultf("certificate", "is no certificate: %v", err))
	}
	next, err := identity.TrustHash(r.GetNextCertificate())
	if err != nil {
		return nil, rpcerr.Invalid(object.Faultf("nextCertificate", "is no certificate: %v", err))
	}
	now := timestamppb.New(s.Now().UTC())
	return &hostv1.Rotation{
		Id: next, Authority: r.GetAuthority(), Step: hostv1.Rotation_STEP_PREPARE, Goal: r.GetGoal(),
		NextCertificate: r.GetNextCertificate(), Signature: r.GetSignature(), Trust: both,
		Host: r.GetHost(), StartTime: now, StepTime: now,
	}, nil
}

// shown returns a rotation without the keys, which are for single hosts.
func shown(r *hostv1.Rotation) *hostv1.Rotation {
	if r == nil {
		return nil
	}
	out := proto.CloneOf(r)
	out.SealedKeys = nil
	return out
}

// PlanRotation returns the rotation and what it waits for.
func (s *Hosts) PlanRotation(ctx context.Context, _ *hostv1.PlanRotationRequest) (*hostv1.PlanRotationResponse, error) {
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	v, _, err := s.rotation(ctx)
	if err != nil {
		return nil, err
	}
	p := plan.Rotate(v)
	out := &hostv1.PlanRotationResponse{
		Rotation: shown(v.Rotation), HeldBack: p.Held, WaitsFor: p.WaitsFor,
		CompletedCount: int32(p.Completed), HostCount: int32(p.Hosts),
	}
	if p.Verb != "" {
		out.Actions = append(out.Actions, &metav1.PlannedAction{Action: p.Verb, Reason: p.Reason})
	}
	return out, nil
}

// SyncCertificates stores the report of a host and returns what it has to do.
func (s *Hosts) SyncCertificates(ctx context.Context, r *hostv1.SyncCertificatesRequest) (
	*hostv1.SyncCertificatesResponse, error,
) {
	ctx, h, err := s.itself(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	if c := r.GetCertificates(); c != nil && !proto.Equal(c, h.GetStatus().GetCertificates()) {
		if !s.Agents.Stores(r.GetName()) {
			return nil, rpcerr.TooMany(fmt.Sprintf("host %q reports its certificates too often", r.GetName()), retryAgent)
		}
		if h, err = s.Records.Change(ctx, r.GetName(), h.GetMetadata().GetUid(),
			func(h *hostv1.Host) (records.Change, error) {
				status := object.Clone(h).GetStatus()
				status.Certificates = c
				return records.Change{Status: status}, nil
			}); err != nil {
			return nil, err
		}
		if err := s.Records.Hosts.CatchUp(ctx); err != nil {
			return nil, err
		}
	}
	v, revision, err := s.rotation(ctx)
	if err != nil {
		return nil, err
	}
	out := &hostv1.SyncCertificatesResponse{Rotation: shown(v.Rotation), RenewalId: h.GetStatus().GetRenewalId()}
	if v.Rotation == nil || !plan.HasAuthorities(h) {
		return out, nil
	}
	if next, changed := plan.Sealed(v, r.GetSealedKeys()); changed {
		if err := s.Records.PutRotation(ctx, next, revision); errors.Is(err, store.ErrConflict) {
			return nil, rpcerr.Conflict("Rotation", v.Rotation.GetAuthority(), "")
		} else if err != nil {
			return nil, err
		}
		v.Rotation = next
	}
	out.Wanted = plan.Wanted(v)
	if k := plan.SealedFor(v.Rotation, r.GetName(), h.GetStatus().GetCertificates().GetSealingKey()); k != nil {
		out.Rotation.SealedKeys = append(out.Rotation.SealedKeys, k)
	}
	return out, nil
}

// itself returns the host that a caller is, which must be the one of that name, and a context whose writes fail once
// this process does not lead.
func (s *Hosts) itself(ctx context.Context, name string) (context.Context, *hostv1.Host, error) {
	caller, _ := identity.CallerFrom(ctx)
	if own, ok := caller.Host(); !ok || own != name {
		return nil, nil, rpcerr.Forbidden(fmt.Sprintf("%q does not speak for host %q: only the host's own agent does",
			caller.User, name))
	}
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	h, ok := s.Records.Hosts.Lookup("", name)
	switch {
	case !ok:
		return nil, nil, rpcerr.NotFound("Host", name)
	case caller.UID != h.GetMetadata().GetUid():
		return nil, nil, rpcerr.Forbidden(
			fmt.Sprintf("the certificate is of an earlier host %q: it was removed, and joins again by a token", name))
	}
	return ctx, h, nil
}
