package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// servicesAuthority is the authority of services, users and agents; workers have certificates of no other one.
const servicesAuthority = "windlass"

// Steps of a rotation.
const (
	prepare  = hostv1.Rotation_STEP_PREPARE
	activate = hostv1.Rotation_STEP_ACTIVATE
	retire   = hostv1.Rotation_STEP_RETIRE
)

// completedAs is what a host reports as completed after a step.
var completedAs = map[hostv1.Rotation_Step]string{prepare: "Prepare", activate: "Activate", retire: "Retire"}

// RotationView is what the next step of a rotation depends on.
type RotationView struct {
	Now      time.Time
	Rotation *hostv1.Rotation // nil if there is none
	Hosts    []*hostv1.Host   // all of the inventory that can be read
	// Unreadable are the names of the hosts whose records cannot be read.
	Unreadable []string
}

// Verbs of a rotation.
const (
	AdvanceRotation = "AdvanceRotation" // to the next step
	FinishRotation  = "FinishRotation"  // nothing trusts the former authority
)

// RotationPlan is the outcome of one decision. The zero plan means that there is no rotation.
type RotationPlan struct {
	Verb      string           // empty if nothing is done now
	Reason    string           // of Verb
	Next      *hostv1.Rotation // after AdvanceRotation
	Held      []*metav1.HeldBack
	WaitsFor  string // in one line; empty if for nothing
	Completed int    // hosts that have completed the present step
	Hosts     int    // that have to complete it
}

// Rotate decides on the next step of a rotation: it is taken once every host that is concerned has completed the
// present one, and never while a host is away, since that host would not be reached by the next authority.
func Rotate(v RotationView) RotationPlan {
	r := v.Rotation
	if r == nil {
		return RotationPlan{}
	}
	var p RotationPlan
	var waits []string
	for _, h := range concerned(v.Hosts, r) {
		p.Hosts++
		held := behind(h, r)
		if held == nil {
			p.Completed++
			continue
		}
		held.Action = AdvanceRotation
		held.Object = &metav1.ObjectReference{Kind: "Host", Name: h.GetMetadata().GetName(), Uid: h.GetMetadata().GetUid()}
		p.Held = append(p.Held, held)
		text := "host " + h.GetMetadata().GetName() + " " + held.GetReason()
		if held.GetUnblock() != "" {
			text += "; " + held.GetUnblock()
		}
		waits = append(waits, text)
	}
	switch {
	case len(v.Unreadable) > 0: // they have to follow, too
		p.WaitsFor = fmt.Sprintf(
			"the record of host %s, which cannot be read: the log of provider-inventory says why; restore "+
				"it, or remove the host with `windlass host remove`", strings.Join(v.Unreadable, ", "))
	case p.Hosts == 0:
		p.WaitsFor = "hosts: the inventory has none"
	case len(waits) > 0 && r.GetStep() == prepare && !keyIsHeld(v.Hosts, r):
		p.WaitsFor = "the key of the next authority, which no host that reports has: run `windlass auth rotate` again on a " +
			"control-plane host, or start the host that began it, " + r.GetHost()
	case len(waits) > 0:
		p.WaitsFor = fmt.Sprintf("%d of %d hosts: %s", len(waits), p.Hosts, strings.Join(waits, ". "))
	case r.GetStep() == retire:
		p.Verb, p.Reason = FinishRotation, "no host trusts the former authority"
	case r.GetStep() < r.GetGoal():
		p.Verb, p.Reason = AdvanceRotation, fmt.Sprintf("all %d hosts have completed the step %s", p.Hosts,
			completedAs[r.GetStep()])
		p.Next = proto.CloneOf(r)
		p.Next.Step, p.Next.StepTime = r.GetStep()+1, timestamppb.New(v.Now.UTC())
		p.Next.SealedKeys = nil // every host has the key
		if p.Next.GetStep() == retire {
			p.Next.Trust = r.GetId()
		}
	}
	return p
}

// concerned returns the hosts that have to follow a rotation, ordered by name.
func concerned(hosts []*hostv1.Host, r *hostv1.Rotation) []*hostv1.Host {
	var out []*hostv1.Host
	for _, h := range hosts {
		if r.GetAuthority() == servicesAuthority || HasAuthorities(h) {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, byName)
	return out
}

// HasAuthorities reports whether a host has the keys of the authorities.
func HasAuthorities(h *hostv1.Host) bool {
	return slices.Contains(h.GetSpec().GetRoles(), controlPlane)
}

// behind returns why a host has not completed the present step; nil if it has.
func behind(h *hostv1.Host, r *hostv1.Rotation) *metav1.HeldBack {
	name, s, c := h.GetMetadata().GetName(), h.GetStatus(), h.GetStatus().GetCertificates()
	switch {
	case s.GetPhase() == Lost:
		return &metav1.HeldBack{
			Reason:    "is away since " + s.GetLastTransitionTime().AsTime().UTC().Format(time.RFC3339),
			Unblock:   fmt.Sprintf("start it, or remove it with `windlass host remove %s`", name),
			SinceTime: s.GetLastTransitionTime(),
		}
	case c.GetRotationId() != r.GetId():
		return &metav1.HeldBack{Reason: "has not reported on this rotation yet", SinceTime: r.GetStepTime()}
	case c.GetPending() != "":
		return &metav1.HeldBack{Reason: "has not completed the step: " + c.GetPending(), SinceTime: r.GetStepTime()}
	case c.GetCompleted() != completedAs[r.GetStep()]:
		return &metav1.HeldBack{Reason: "has not completed the step", SinceTime: r.GetStepTime()}
	case c.GetTrust() != r.GetTrust():
		return &metav1.HeldBack{
			Reason:    fmt.Sprintf("trusts %s, not %s", c.GetTrust(), r.GetTrust()),
			SinceTime: r.GetStepTime(),
		}
	case r.GetStep() == prepare && r.GetAuthority() == servicesAuthority && work(h) == Claimed:
		// The token of its machine names the authorities of the moment in which the host was claimed.
		return &metav1.HeldBack{
			Reason:    "starts a machine, which may not know the next authority",
			SinceTime: s.GetClaimTime(),
		}
	}
	return nil
}

// keyIsHeld reports whether a host that is not away has the key of the next authority. One that asks for it has none:
// its disk may have another next authority.
func keyIsHeld(hosts []*hostv1.Host, r *hostv1.Rotation) bool {
	return slices.ContainsFunc(hosts, func(h *hostv1.Host) bool {
		c := h.GetStatus().GetCertificates()
		// That of the host that began it has not reported at first.
		began := h.GetMetadata().GetName() == r.GetHost() && c.GetRotationId() != r.GetId()
		return h.GetStatus().GetPhase() != Lost && HasAuthorities(h) &&
			(began || c.GetRotationId() == r.GetId() && c.GetStep() != "Steady" && len(c.GetSealingKey()) == 0)
	})
}

// Begin returns the rotation after a request to begin one, or to move its goal: begun unless there is a rotation. begun
// is nil if the request has no next authority.
func Begin(v RotationView, authority string, goal hostv1.Rotation_Step, begun *hostv1.Rotation) (*hostv1.Rotation,
	error,
) {
	r := v.Rotation
	switch {
	case r == nil && begun == nil:
		return nil, &RotationRefusal{"there is no rotation to finish; begin one with `windlass auth rotate`"}
	case r == nil:
		return begun, nil
	case r.GetAuthority() != authority:
		return nil, &RotationRefusal{fmt.Sprintf(
			"authority %s is being rotated (step %s), and only one is at a time: finish it with `windlass auth rotate %s`",
			r.GetAuthority(), completedAs[r.GetStep()], finishing(r))}
	case r.GetStep() == prepare && begun != nil && begun.GetId() != r.GetId() && !keyIsHeld(v.Hosts, r):
		// The host that has the key of the next authority is gone, and nothing is signed by it.
		begun.Goal = max(begun.GetGoal(), r.GetGoal())
		return begun, nil
	}
	out := proto.CloneOf(r)
	out.Goal = max(out.GetGoal(), goal)
	return out, nil
}

// finishing returns the arguments of `windlass auth rotate` that finish a rotation.
func finishing(r *hostv1.Rotation) string {
	if r.GetAuthority() == servicesAuthority {
		return "api --finish"
	}
	return r.GetAuthority()
}

// RotationRefusal is why a request for a rotation is refused.
type RotationRefusal struct{ Text string }

func (r *RotationRefusal) Error() string { return r.Text }

// Wanted returns the keys of the hosts for which the key of the next authority is still to be encrypted.
func Wanted(v RotationView) []*hostv1.SealingKey {
	r := v.Rotation
	if r.GetStep() != prepare {
		return nil
	}
	var out []*hostv1.SealingKey
	for _, h := range concerned(v.Hosts, r) {
		c := h.GetStatus().GetCertificates()
		if HasAuthorities(h) && c.GetRotationId() == r.GetId() && len(c.GetSealingKey()) > 0 &&
			SealedFor(r, h.GetMetadata().GetName(), c.GetSealingKey()) == nil {
			out = append(out, &hostv1.SealingKey{
				Host: h.GetMetadata().GetName(), Key: c.GetSealingKey(), Signature: c.GetSealingSignature(),
			})
		}
	}
	return out
}

// SealedFor returns the key of the next authority that is encrypted for a key of a host; nil if there is none.
func SealedFor(r *hostv1.Rotation, host string, key []byte) *hostv1.SealedKey {
	for _, k := range r.GetSealedKeys() {
		if k.GetHost() == host && string(k.GetSealingKey()) == string(key) {
			return k
		}
	}
	return nil
}

// Sealed returns the rotation with keys that a host has encrypted, and whether that changes it. A key counts only if it
// is wanted.
func Sealed(v RotationView, keys []*hostv1.SealedKey) (*hostv1.Rotation, bool) {
	out, changed := proto.CloneOf(v.Rotation), false
	for _, w := range Wanted(v) {
		i := slices.IndexFunc(keys, func(k *hostv1.SealedKey) bool {
			return k.GetHost() == w.GetHost() && string(k.GetSealingKey()) == string(w.GetKey())
		})
		if i < 0 {
			continue
		}
		out.SealedKeys = slices.DeleteFunc(out.GetSealedKeys(), func(k *hostv1.SealedKey) bool {
			return k.GetHost() == w.GetHost() // for a key of an earlier process
		})
		out.SealedKeys, changed = append(out.SealedKeys, keys[i]), true
	}
	return out, changed
}
