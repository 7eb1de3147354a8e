package kinds

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// revocationMargin is how long a revocation stays after the last certificate that it concerns has expired, for hosts
// whose clocks are behind.
const revocationMargin = 24 * time.Hour

var serialPattern = regexp.MustCompile(`^[1-9a-f][0-9a-f]*$`)

func (t *Tables) defaultRevocation(r *machinev1.Revocation) {
	if r.Spec == nil {
		r.Spec = &machinev1.RevocationSpec{}
	}
	now := time.Now()
	if r.Spec.User != "" && r.Spec.IssuedBefore == nil {
		r.Spec.IssuedBefore = timestamppb.New(now)
	}
	if r.Spec.ExpirationTime == nil {
		r.Spec.ExpirationTime = timestamppb.New(now.Add(identity.MaxLifetime + revocationMargin).Truncate(time.Second))
	}
}

func validateRevocation(r *machinev1.Revocation) []object.Fault {
	s := r.GetSpec()
	var bad []object.Fault
	given := 0
	for _, v := range []string{s.GetUser(), s.GetSerialNumber(), s.GetMachineUid()} {
		if v != "" {
			given++
		}
	}
	if given != 1 {
		bad = append(bad,
			object.Fault{Path: "spec", Description: "must have exactly one of user, serialNumber and machineUID"})
	}
	if n := s.GetSerialNumber(); n != "" && !serialPattern.MatchString(n) {
		bad = append(bad,
			object.Fault{
				Path:        "spec.serialNumber",
				Description: fmt.Sprintf("%q must be hexadecimal in lower case, without colons or leading zeros", n),
			})
	}
	if strings.HasPrefix(s.GetUser(), "system:") {
		bad = append(bad,
			object.Fault{
				Path: "spec.user", Description: "is a name of the system: revoke nodes by machineUID and services by serialNumber",
			})
	}
	if s.GetUser() == "" && s.GetIssuedBefore() != nil {
		bad = append(bad, object.Fault{Path: "spec.issuedBefore", Description: "may only be given with user"})
	}
	if s.GetMachineUid() == "" && s.GetMachineName() != "" {
		bad = append(bad, object.Fault{Path: "spec.machineName", Description: "may only be given with machineUID"})
	}
	return bad
}

func validateRevocationUpdate(old, r *machinev1.Revocation) []object.Fault {
	if proto.Equal(old.GetSpec(), r.GetSpec()) {
		return nil
	}
	return []object.Fault{{Path: "spec", Description: "cannot be changed: create another revocation"}}
}

// RevokeMachine makes every service refuse the certificates of a machine, by its uid. It is safe to call again. The
// entry can be removed when the last of these certificates has expired (NodeLifetime). It notes which health check had
// the machine deleted.
func (t *Tables) RevokeMachine(ctx context.Context, m *machinev1.Machine, reason string) error {
	uid := m.GetMetadata().GetUid()
	if uid == "" {
		return fmt.Errorf("machine %q: no uid", m.GetMetadata().GetName())
	}
	name := "machine-" + uid
	if _, known := t.Revocations.Lookup("", name); known {
		return nil
	}
	_, err := t.Revocations.Create(ctx, &machinev1.Revocation{
		Metadata: &metav1.ObjectMeta{Name: name, Annotations: plan.RemediationNote(m)},
		Spec: &machinev1.RevocationSpec{
			MachineUid: uid, MachineName: m.GetMetadata().GetName(), Reason: reason,
			ExpirationTime: timestamppb.New(time.Now().Add(t.NodeLifetime + revocationMargin).Truncate(time.Second)),
		},
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	return err
}

// CollectRevocations removes the entries that concern only certificates that have expired, and returns when to call it
// again.
func (t *Tables) CollectRevocations(ctx context.Context, now time.Time) (next time.Time, err error) {
	const every = time.Hour // nothing depends on an entry being gone early
	for r := range t.Revocations.Objects() {
		if now.Before(r.GetSpec().GetExpirationTime().AsTime()) {
			continue
		}
		_, err := t.Revocations.Delete(ctx, "", r.GetMetadata().GetName(), nil)
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return now.Add(every), fmt.Errorf("revocation %q: %w", r.GetMetadata().GetName(), err)
		}
	}
	return now.Add(every), nil
}
