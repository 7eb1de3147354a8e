package controller

import (
	"context"
	"errors"
	"strings"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Preflight says what would come of the desired update of a ClusterVersion that is not stored: the checks that the
// controller makes before it accepts a release, and what the release would bring and remove. It changes nothing, and
// may be called by any replica.
func (c *Controller) Preflight(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference) (
	*updatev1.PreflightClusterVersionResponse, error,
) {
	present := c.present(ctx, cv)
	e, err := c.examine(ctx, cv, target, present)
	var refused *step
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && !errors.As(err, &refused):
		return nil, err
	}
	out := &updatev1.PreflightClusterVersionResponse{Release: target, Accepted: refused == nil}
	if check := plan.PauseCheck(cv, time.Now()); check != nil {
		out.Checks = append(out.Checks, check)
	}
	if check := plan.WindowCheck(cv, target.GetImage(), c.Tables.Windows.All(), time.Now()); check != nil {
		out.Checks = append(out.Checks, check)
	}
	before := true
	for _, name := range []string{retrievePayload, verifyPayload, loadPayload, verifyPayloadVersion} {
		check := &updatev1.ReleaseCheck{Name: name, Result: plan.CheckPassed}
		switch {
		case refused != nil && name == refused.reason:
			check.Result, check.Message, before = plan.CheckFailed, refused.err.Error(), false
		case !before:
			check.Result = plan.CheckNotChecked
		case name == verifyPayload && e.unsigned != "":
			check.Result, check.Message = plan.CheckWaived, e.unsigned
		}
		out.Checks = append(out.Checks, check)
	}
	if refused != nil {
		out.Checks = append(out.Checks, plan.Unchecked()...)
		return out, nil
	}
	waivers := plan.WaiversOf(cv.GetSpec().GetDesiredUpdate())
	if c.Snapshots != nil && !plan.Aborts(cv, e.image.Reference) {
		out.Checks = append(out.Checks, plan.SnapshotCheck(waivers))
	}
	out.Checks = append(out.Checks, e.verdict.Checks(waivers)...)
	if blocked, _ := e.verdict.Decide(waivers); blocked != "" {
		out.Accepted = false
	}
	c.foresee(cv, e.release, out)
	out.Release = e.release.reference(target)
	return out, nil
}

// present returns the release that the cluster is at; nil if it cannot be read: then the keys that it brings do not
// count.
func (c *Controller) present(ctx context.Context, cv *updatev1.ClusterVersion) *loaded {
	image := cv.GetStatus().GetDesired().GetImage()
	if image == "" {
		return nil
	}
	found, err := c.find(ctx, image)
	if err != nil {
		return nil
	}
	l, _ := c.load(found)
	return l
}

// Verify says which signatures an image has that count for this cluster. It changes nothing, and may be called by any
// replica.
func (c *Controller) Verify(ctx context.Context, cv *updatev1.ClusterVersion, image string) (
	*updatev1.VerifyReleaseResponse, error,
) {
	found, err := c.find(ctx, image)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return &updatev1.VerifyReleaseResponse{Image: image, Message: "the image cannot be retrieved: " + err.Error()}, nil
	}
	proofs, err := c.verify(ctx, cv, c.present(ctx, cv), found.Digest)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	name, _, _ := strings.Cut(found.Reference, "@")
	out := &updatev1.VerifyReleaseResponse{Image: name + "@" + found.Digest, Verified: err == nil}
	if err != nil {
		out.Message = err.Error()
	}
	for _, p := range proofs {
		proof := &updatev1.VerifyReleaseResponse_Proof{
			KeyRing: p.Ring, Store: p.Store, Signature: p.Signature, KeyId: p.Key, SignedTime: timestamppb.New(p.Signed),
		}
		if !p.Expires.IsZero() {
			proof.ExpirationTime = timestamppb.New(p.Expires)
		}
		out.Proofs = append(out.Proofs, proof)
	}
	return out, nil
}

// foresee says what a release would change.
func (c *Controller) foresee(cv *updatev1.ClusterVersion, next *loaded, out *updatev1.PreflightClusterVersionResponse) {
	st := cv.GetStatus()
	before := next.place(c.inventory(st.GetDesired().GetImage()))
	next = next.with(next.enables(cv, st.GetCapabilities().GetEnabledCapabilities(), before).GetEnabledCapabilities())
	out.ManifestCount = proto.Int32(int32(next.total))
	out.Added = plan.Leftovers(next.wants(), before)
	out.Removed = plan.Leftovers(before, next.wants())
	out.Jobs, out.Unserved = next.jobs(), next.unserved()
	out.EnabledCapabilities = next.enabled
}
