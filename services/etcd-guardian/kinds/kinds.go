// Package kinds says what snapshots and their schedules are beyond the shape of their messages: which writes are
// refused.
package kinds

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/schedule"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// longestName of a schedule: the names of its snapshots end with the time, and have to be names too.
const longestName = 63

// longestFile is the longest name of a snapshot: those of its files are a little longer, and file systems allow 255.
const longestFile = 200

// Tables are the records of this service.
type Tables struct {
	Snapshots *resource.Table[*etcdv1.Snapshot]
	Schedules *resource.Table[*etcdv1.SnapshotSchedule]
}

// New returns the tables over a store. Nothing is read before they run. hasKeys says that snapshots may have the keys
// of the control plane beside them; policy says who may ask for that.
func New(st *store.Store, validator protovalidate.Validator, hasKeys bool, policy *identity.Policy, log *slog.Logger,
) *Tables {
	return &Tables{
		Snapshots: resource.NewTable(st, validator, resource.Config[*etcdv1.Snapshot]{
			Finalizers: []string{plan.SnapshotFinalizer}, ValidateUpdate: keepsSpec, Log: log,
			Admit: func(w *resource.Write[*etcdv1.Snapshot]) error {
				if err := admitSnapshot(w); err != nil {
					return err
				}
				return admitRecipients(policy, w, "snapshots/keys", w.Old.GetSpec().GetKeyRecipients(),
					w.New.GetSpec().GetKeyRecipients())
			},
			Validate: func(s *etcdv1.Snapshot) []object.Fault {
				return recipientFaults(s.GetSpec().GetKeyRecipients(), hasKeys)
			},
		}),
		Schedules: resource.NewTable(st, validator, resource.Config[*etcdv1.SnapshotSchedule]{
			Validate: func(s *etcdv1.SnapshotSchedule) []object.Fault {
				return append(scheduleFaults(s), recipientFaults(s.GetSpec().GetKeyRecipients(), hasKeys)...)
			},
			Admit: func(w *resource.Write[*etcdv1.SnapshotSchedule]) error {
				return admitRecipients(policy, w, "snapshotschedules/keys", w.Old.GetSpec().GetKeyRecipients(),
					w.New.GetSpec().GetKeyRecipients())
			},
			Log: log,
		}),
	}
}

// admitRecipients lets only callers with the right to update RESOURCE/keys choose who can open the keys of the control
// plane in a backup: with these a recipient is root of the cluster.
func admitRecipients[T object.Object](policy *identity.Policy, w *resource.Write[T], resource string, was, is []string,
) error {
	if w.Own || len(is) == 0 || slices.Equal(was, is) {
		return nil
	}
	right := identity.Attributes{
		Verb: "update", Group: "windlass.dev", Resource: resource, Name: w.New.GetMetadata().GetName(),
	}
	if ok, reason := policy.Allowed(w.By, right); !ok {
		return rpcerr.Forbidden("spec.keyRecipients: " + reason)
	}
	return nil
}

func keepsSpec(old, next *etcdv1.Snapshot) []object.Fault {
	if proto.Equal(old.GetSpec(), next.GetSpec()) {
		return nil
	}
	return []object.Fault{{Path: "spec", Description: "is immutable: create another snapshot"}}
}

func admitSnapshot(w *resource.Write[*etcdv1.Snapshot]) error {
	switch {
	case w.Own || !w.Creates():
		return nil
	case w.New.GetSpec().GetSchedule() != "":
		return rpcerr.Invalid(object.Fault{
			Path: "spec.schedule", Description: "is set by the guardian alone: it decides how long the snapshot is kept",
		})
	case len(w.New.GetMetadata().GetName()) > longestFile:
		return rpcerr.Invalid(object.Faultf("metadata.name", "must have at most %d characters", longestFile))
	}
	return nil
}

func scheduleFaults(s *etcdv1.SnapshotSchedule) []object.Fault {
	var out []object.Fault
	if len(s.GetMetadata().GetName()) > longestName {
		out = append(out, object.Fault{Path: "metadata.name", Description: "must have at most 63 characters"})
	}
	if _, err := schedule.Parse("@daily", s.GetSpec().GetTimeZone()); err != nil {
		out = append(out, object.Fault{Path: "spec.timeZone", Description: err.Error()})
	} else if _, err := schedule.Parse(s.GetSpec().GetSchedule(), ""); err != nil {
		out = append(out, object.Fault{Path: "spec.schedule", Description: err.Error()})
	} else if why := schedule.Fault(s.GetSpec().GetSchedule(), time.Second); why != "" {
		out = append(out, object.Fault{Path: "spec.schedule", Description: why})
	}
	if text := s.GetSpec().GetRetention().GetMaxSize(); text != "" {
		if q, err := placement.ParseQuantity(text); err != nil || q.Value() <= 0 {
			out = append(out, object.Fault{
				Path: "spec.retention.maxSize", Description: "must be a quantity of bytes greater than zero, such as 10Gi",
			})
		}
	}
	return out
}

func recipientFaults(recipients []string, hasKeys bool) []object.Fault {
	if len(recipients) > 0 && !hasKeys {
		return []object.Fault{{
			Path: "spec.keyRecipients", Description: "must be empty: the keys of a control plane are stored on hosts only " +
				"(windlass host), and this one is not on hosts",
		}}
	}
	var out []object.Fault
	for i, r := range recipients {
		if err := hostbundle.CheckRecipient(r); err != nil {
			out = append(out, object.Fault{Path: fmt.Sprintf("spec.keyRecipients[%d]", i), Description: err.Error()})
		}
	}
	return out
}
