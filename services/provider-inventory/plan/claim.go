package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Ask is what a machine needs of a host.
type Ask struct {
	Selector labels.Selector // that the labels of the host must match; nil matches all
	Zone     string          // failure domain of the host; empty matches all
	Role     string          // of the host, see RoleOf
}

// Choice is the decision about a claim.
type Choice struct {
	Host   *hostv1.Host // that is claimed; nil if no host matches
	Others []Other      // the other hosts, ordered by name
}

// Other is a host that is not chosen.
type Other struct {
	Host    *hostv1.Host
	Cause   string // in the summary, such as "in use"
	Reason  string // in one sentence
	Unblock string // what would let a machine claim it; empty if no intervention would
}

// spare is the cause of hosts that match too.
const spare = "spare"

// causes are those of hosts that do not match, in the order in which a summary has them.
var causes = []string{
	"in use", "being wiped", "lost", "quarantined", "unschedulable", "being removed", "in another zone",
	"of another role", "not selected by hostSelector",
}

// Choose decides which of hosts a machine claims: of those that match, the one that had the fewest orders, and among
// these the first by name.
func Choose(a Ask, hosts []*hostv1.Host) Choice {
	var out Choice
	var fit []*hostv1.Host
	for _, h := range slices.SortedFunc(slices.Values(hosts), byName) {
		if o := a.mismatch(h); o.Cause != "" {
			out.Others = append(out.Others, o)
			continue
		}
		fit = append(fit, h)
	}
	if len(fit) == 0 {
		return out
	}
	out.Host = slices.MinFunc(fit, func(a, b *hostv1.Host) int {
		return cmp.Or(cmp.Compare(a.GetStatus().GetOrders(), b.GetStatus().GetOrders()), byName(a, b))
	})
	for _, h := range fit {
		if h != out.Host {
			out.Others = append(out.Others, Other{
				Host: h, Cause: spare,
				Reason: fmt.Sprintf("matches too; host %s comes first", out.Host.GetMetadata().GetName()),
			})
		}
	}
	slices.SortFunc(out.Others, func(a, b Other) int { return byName(a.Host, b.Host) })
	return out
}

// mismatch returns why a host does not match; the zero Other without a cause if it does. What does not change by itself
// comes first: the phase of a host that could never match is of no interest.
func (a Ask) mismatch(h *hostv1.Host) Other {
	s, spec := h.GetStatus(), h.GetSpec()
	o := Other{Host: h}
	switch {
	case !slices.Contains(spec.GetRoles(), a.Role):
		o.Cause, o.Reason = "of another role", fmt.Sprintf("its roles are %s, not %s", strings.Join(spec.GetRoles(), " and "),
			a.Role)
	case a.Zone != "" && spec.GetZone() != a.Zone:
		o.Cause, o.Reason = "in another zone", fmt.Sprintf("its zone is %q, not %q", spec.GetZone(), a.Zone)
		o.Unblock = "change spec.zone of the host, or the zone of the provider spec"
	case a.Selector != nil && !a.Selector.Matches(labels.Set(h.GetMetadata().GetLabels())):
		o.Cause, o.Reason = "not selected by hostSelector", fmt.Sprintf("its labels do not match %q", a.Selector)
		o.Unblock = "label the host, or change hostSelector of the provider spec"
	case object.Deleting(h):
		o.Cause, o.Reason = "being removed", "it is removed once its finalizers are"
	case s.GetPhase() == Lost:
		o.Cause = "lost"
	case s.GetPhase() == Claimed || s.GetPhase() == InUse:
		o.Cause = "in use"
	case s.GetPhase() == Wiping:
		o.Cause = "being wiped"
	case s.GetPhase() == Quarantined:
		o.Cause = "quarantined"
	case spec.GetUnschedulable():
		o.Cause, o.Reason = "unschedulable", cmp.Or(spec.GetUnschedulableReason(), "it is cordoned")
		o.Unblock = "uncordon the host"
	}
	if o.Cause != "" && o.Reason == "" {
		o.Reason, o.Unblock = s.GetMessage(), s.GetUnblock()
	}
	return o
}

// WaitsFor says in one line why no host matches; empty if one does.
func (c Choice) WaitsFor() string {
	if c.Host != nil {
		return ""
	}
	var parts []string
	for _, cause := range causes {
		n := 0
		for _, o := range c.Others {
			if o.Cause == cause {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, cause))
		}
	}
	line := fmt.Sprintf("0 of %d hosts match", len(c.Others))
	if len(parts) > 0 {
		line += ": " + strings.Join(parts, ", ")
	}
	return line
}

// Steps returns the choice as a Plan RPC shows it.
func (c Choice) Steps() (actions []*metav1.PlannedAction, held []*metav1.HeldBack) {
	const claim = "ClaimHost"
	if c.Host != nil {
		actions = append(actions, &metav1.PlannedAction{
			Action: claim, Object: object.Reference(c.Host), Reason: "it matches and had the fewest orders",
		})
	}
	for _, o := range c.Others {
		held = append(held, &metav1.HeldBack{
			Action: claim, Object: object.Reference(o.Host), Reason: o.Reason, Unblock: o.Unblock,
			SinceTime: o.Host.GetStatus().GetLastTransitionTime(),
		})
	}
	return actions, held
}

// Claimant is the machine that claims a host.
type Claimant struct {
	Machine    *metav1.ObjectReference
	Token      string // request token
	ProviderID string
	Fence      int64 // of the call
}

// Claim returns the status of an Available host after a claim.
func Claim(h *hostv1.Host, by Claimant, now time.Time) *hostv1.HostStatus {
	s := next(h)
	order(s)
	s.MachineRef, s.ProviderId, s.RequestToken = by.Machine, &by.ProviderID, &by.Token
	s.ClaimTime, s.Fence = seconds(now), fenceText(by.Fence)
	enter(s, Claimed, now)
	return described(s)
}

// Delete returns the status of a host after the deletion of its machine's instance: it is Wiping. A host that is wiped
// already does not change.
func Delete(h *hostv1.Host, fence int64, now time.Time) *hostv1.HostStatus {
	s := next(h)
	if w := work(h); w != Claimed && w != InUse {
		return s
	}
	order(s)
	s.Fence = fenceText(fence)
	enter(s, Wiping, now)
	return described(s)
}

func fenceText(fence int64) *string {
	if fence == 0 {
		return nil
	}
	return new(strconv.FormatInt(fence, 10))
}
