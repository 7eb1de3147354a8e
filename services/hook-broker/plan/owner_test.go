package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestWhatIsKnownOfAnOwner(t *testing.T) {
	object := func(connected bool, seen time.Duration) *hookv1.HookOwner {
		o := &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{CreationTimestamp: timestamppb.New(start)},
			Spec:     &hookv1.HookOwnerSpec{Owner: backup}, Status: &hookv1.HookOwnerStatus{Connected: &connected},
		}
		if seen >= 0 {
			o.Status.LastSeenTime = floor(start.Add(seen))
		}
		return o
	}
	late := &hookv1.HookTask{
		Spec: &hookv1.HookTaskSpec{HookName: "B", MachineRef: &metav1.ObjectReference{Name: "m"}},
		Status: &hookv1.HookTaskStatus{Phase: proto.String(Pending), Conditions: []*metav1.Condition{
			{Type: Overdue, Status: "True"},
		}},
	}
	done := &hookv1.HookTask{Status: status(Completed)}
	type facts struct {
		Create     bool
		Connected  bool
		Seen       time.Duration // after start; -1 for never
		Pending    int32
		Conditions string
		Wake       time.Duration
		Remove     bool
	}
	with := func(change func(*hookv1.HookOwner)) *hookv1.HookOwner {
		o := object(false, -1)
		change(o)
		return o
	}
	for name, c := range map[string]struct {
		view OwnerView
		want facts
	}{
		"no hook names it, so there is none": {OwnerView{Now: start, Owner: backup}, facts{Seen: -1}},
		"a hook that names it brings it into being": {
			OwnerView{Now: start, Owner: backup, Named: true},
			facts{Create: true, Seen: -1},
		},
		"a connection brings it into being": {
			OwnerView{Now: start, Owner: backup, Connected: true},
			facts{Create: true, Seen: -1},
		},
		"one that never came": {
			OwnerView{Now: start, Owner: backup, Object: object(false, -1), Tasks: []*hookv1.HookTask{late, done}},
			facts{Seen: -1, Pending: 1, Conditions: "Seen=False/NeverSeen Overdue=True/TasksOverdue"},
		},
		"one that comes": {
			OwnerView{
				Now: start.Add(time.Minute), Owner: backup, Object: object(false, -1), Connected: true,
				LastSeen: start.Add(time.Minute),
			},
			facts{
				Connected: true, Seen: time.Minute, Conditions: "Seen=True/Connected Overdue=False/InTime",
				Wake: 90 * time.Second,
			},
		},
		"one that stays is stored twice a minute": {
			OwnerView{
				Now: start.Add(29 * time.Second), Owner: backup, Object: object(true, 0), Connected: true, LastSeen: start,
			},
			facts{Connected: true, Seen: 0, Conditions: "Seen=True/Connected Overdue=False/InTime", Wake: 30 * time.Second},
		},
		"one that stays longer": {
			OwnerView{
				Now: start.Add(30 * time.Second), Owner: backup, Object: object(true, 0), Connected: true, LastSeen: start,
			},
			facts{
				Connected: true, Seen: 30 * time.Second, Conditions: "Seen=True/Connected Overdue=False/InTime",
				Wake: time.Minute,
			},
		},
		"one that leaves is stored at once": {
			OwnerView{
				Now: start.Add(9 * time.Second), Owner: backup, Object: object(true, 0),
				LastSeen: start.Add(8 * time.Second),
			},
			facts{
				Seen: 8 * time.Second, Conditions: "Seen=True/Disconnected Overdue=False/InTime",
				Wake: 8*time.Second + awayAfter,
			},
		},
		"one that this process knows nothing of was seen when it was": {
			OwnerView{Now: start.Add(time.Hour), Owner: backup, Object: object(true, 0)},
			facts{Seen: 0, Conditions: "Seen=False/Away Overdue=False/InTime"},
		},
		"one that no hook names any more and that never came ends": {
			OwnerView{Now: start.Add(time.Minute), Owner: backup, Object: object(false, -1)},
			facts{Seen: -1, Remove: true},
		},
		"not at once": {
			OwnerView{Now: start.Add(59 * time.Second), Owner: backup, Object: object(false, -1)},
			facts{Seen: -1, Conditions: "Seen=False/NeverSeen Overdue=False/InTime", Wake: time.Minute},
		},
		"not while a hook names it": {
			OwnerView{Now: start.Add(time.Hour), Owner: backup, Object: object(false, -1), Named: true},
			facts{Seen: -1, Conditions: "Seen=False/NeverSeen Overdue=False/InTime"},
		},
		"not with settings": {
			OwnerView{Now: start.Add(time.Hour), Owner: backup, Object: with(func(o *hookv1.HookOwner) {
				o.Spec.ClaimDuration = "5m"
			})},
			facts{Seen: -1, Conditions: "Seen=False/NeverSeen Overdue=False/InTime"},
		},
		"not with an annotation": {
			OwnerView{Now: start.Add(time.Hour), Owner: backup, Object: with(func(o *hookv1.HookOwner) {
				o.Metadata.Annotations = map[string]string{"team": "storage"}
			})},
			facts{Seen: -1, Conditions: "Seen=False/NeverSeen Overdue=False/InTime"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Owner(c.view)
			s := c.view.Object.GetStatus()
			created := len(p.Do) == 1 && p.Do[0].Verb == CreateOwner
			removed := len(p.Do) == 1 && p.Do[0].Verb == RemoveOwner
			if len(p.Do) == 1 && p.Do[0].Verb == StoreOwner {
				s = p.Do[0].Owner.GetStatus()
			}
			got := facts{Create: created, Connected: s.GetConnected(), Pending: s.GetPendingTasks(), Seen: -1, Remove: removed}
			if at := s.GetLastSeenTime(); at != nil {
				got.Seen = at.AsTime().Sub(start)
			}
			for i, cond := range s.GetConditions() {
				if i > 0 {
					got.Conditions += " "
				}
				got.Conditions += cond.GetType() + "=" + cond.GetStatus() + "/" + cond.GetReason()
			}
			if !p.Wake.IsZero() {
				got.Wake = p.Wake.Sub(start)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFaultsOfAnOwner(t *testing.T) {
	owner := func(name, claim, overdue string) *hookv1.HookOwner {
		return &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{Name: name},
			Spec:     &hookv1.HookOwnerSpec{Owner: backup, ClaimDuration: claim, OverdueAfter: overdue},
		}
	}
	for name, c := range map[string]struct {
		owner *hookv1.HookOwner
		want  []string
	}{
		"settings are free":               {owner(backup, "90s", "1h30m"), nil},
		"the name is made of the owner":   {owner("other", "", ""), []string{"metadata.name"}},
		"a claim lasts a second at least": {owner(backup, "10ms", ""), []string{"spec.claimDuration"}},
		"and a day at most":               {owner(backup, "25h", ""), []string{"spec.claimDuration"}},
		"0s is no patience":               {owner(backup, "", "0s"), []string{"spec.overdueAfter"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range OwnerFaults(c.owner) {
				got = append(got, f.Path)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
