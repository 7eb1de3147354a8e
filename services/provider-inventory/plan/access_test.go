package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

// recorded returns the content of a generation, whose texts and hashes are p and t with its number; changes apply to
// it.
func recorded(generation int32, changes ...func(*hostv1.ClusterAccess)) *hostv1.ClusterAccess {
	n := string(rune('0' + generation))
	a := &hostv1.ClusterAccess{
		Generation: generation, Policy: "p" + n, Tokens: "t" + n, PolicyHash: "p" + n, TokensHash: "t" + n,
		PolicyGeneration: generation, TokensGeneration: generation, ChangedBy: "ann", ChangeTime: timestamppb.New(start),
	}
	for _, change := range changes {
		change(a)
	}
	return a
}

// first makes a content one that no user has confirmed.
func first(a *hostv1.ClusterAccess) { a.Host, a.ChangedBy = "h1", "" }

// fileReport returns the report of a host with the files policy and tokens, which had a generation before.
func fileReport(generation int32, policy, tokens string, changed ...string) *hostv1.HostAccess {
	return &hostv1.HostAccess{
		Generation: &generation, PolicyHash: &policy, TokensHash: &tokens, Changed: changed,
	}
}

// reporter returns a host that reported at the start; nil is nothing.
func reporter(name string, access *hostv1.HostAccess) *hostv1.Host {
	if access = proto.CloneOf(access); access != nil {
		access.SinceTime = timestamppb.New(start)
	}
	return &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: name}, Spec: &hostv1.HostSpec{Roles: []string{"control-plane"}},
		Status: &hostv1.HostStatus{
			Phase: new("InUse"), LastTransitionTime: timestamppb.New(start), Access: access,
		},
	}
}

// inState returns the report of a host that was stored in a state.
func inState(state string, a *hostv1.HostAccess) *hostv1.HostAccess {
	a.State = &state
	return a
}

func TestSyncAccess(t *testing.T) {
	now := start.Add(time.Minute)
	for name, test := range map[string]struct {
		record *hostv1.ClusterAccess
		leader string
		before *hostv1.HostAccess
		report *hostv1.HostAccess
		texts  bool
		state  string          // that is stored
		want   plan.AccessStep // without its status
		since  time.Time
	}{
		"the host of the leader is asked for its files": {
			leader: "h2", report: fileReport(0, "p", "t"), want: plan.AccessStep{Wanted: true}, since: now,
		},
		"the first content is made from them": {
			leader: "h2", report: fileReport(0, "p", "t"), texts: true, want: plan.AccessStep{Record: true}, since: now,
		},
		"another host is not asked": {leader: "h1", report: fileReport(0, "p", "t"), since: now},
		"nothing is made from files of another host": {
			leader: "h1", report: fileReport(0, "p", "t"), texts: true,
			since: now,
		},
		"no host is asked while none is known to lead": {report: fileReport(0, "p", "t"), since: now},
		"a host that has the content gets nothing": {
			state: "Same", record: recorded(3),
			report: fileReport(3, "p3", "t3"), since: now,
		},
		"what was reported before keeps its time": {
			state: "Same", record: recorded(3), before: inState("Same", fileReport(3, "p3", "t3")),
			report: fileReport(3, "p3", "t3"), since: start,
		},
		"a host of an older generation gets the change": {
			state: "Replacing", record: recorded(3), report: fileReport(2, "p2", "t3"),
			want: plan.AccessStep{Give: true}, since: now,
		},
		"a host that joined with older files gets it": {
			state: "Replacing", record: recorded(3), report: fileReport(0, "p1", "t1"), want: plan.AccessStep{
				Give: true, Normal: true, Reason: "AccessFilesReplaced", Message: "policy.yaml and tokens of the host replaced " +
					"by generation 3; what they had is kept beside them, as policy.yaml.replaced and tokens.replaced",
			},
			since: now,
		},
		"a change on the host is reported and replaced": {
			state: "Replacing", record: recorded(3), before: inState("Same", fileReport(3, "p3", "t3")),
			report: fileReport(3, "x", "t3", "policy.yaml"),
			want: plan.AccessStep{
				Give: true, Reason: "AccessFilesChanged", Message: "policy.yaml changed on the host, and replaced by " +
					"generation 3: change the policy and the tokens of the cluster with `windlass auth`",
			},
			since: now,
		},
		"the same change is reported once": {
			state: "Replacing", record: recorded(3), before: inState("Replacing", fileReport(3, "x", "t3", "policy.yaml")),
			report: fileReport(3, "x", "t3", "policy.yaml"),
			want:   plan.AccessStep{Give: true}, since: start,
		},
		"a change on the host to what is recorded is none": {
			state: "Replacing", record: recorded(3), report: fileReport(2, "p3", "t2", "policy.yaml"), want: plan.AccessStep{
				Give: true,
			}, since: now,
		},
		"a missing policy is put back": {
			state: "Replacing", record: recorded(3), report: fileReport(3, "", "t3", "policy.yaml"),
			want: plan.AccessStep{
				Give: true, Reason: "AccessFilesChanged", Message: "policy.yaml changed on the host, and replaced by " +
					"generation 3: change the policy and the tokens of the cluster with `windlass auth`",
			},
			since: now,
		},
		"a host of a later generation is reported: a snapshot was restored": {
			state: "Replacing", record: recorded(3), report: fileReport(5, "p5", "t5"),
			want: plan.AccessStep{
				Give: true, Reason: "AccessFilesOutdated",
				Message: "the host had generation 5 of the policy and the tokens, and gets generation 3: an older snapshot of " +
					"etcd was restored; check which tokens and rights that brings back",
			},
			since: now,
		},
		"files of a host that never had the first content are kept": {
			state: "Kept", record: recorded(1, first), report: fileReport(0, "x", "t1"),
			want: plan.AccessStep{
				Reason: "AccessFilesDiffer",
				Message: "policy.yaml: not the same as on host h1, whose files are recorded, and not " +
					"replaced: compare them, then decide with `windlass auth policy apply -f policy.yaml`",
			},
			since: now,
		},
		"also if the host reported them before anything was recorded": {
			state: "Kept", record: recorded(1, first), before: fileReport(0, "x", "t1"), report: fileReport(0, "x", "t1"),
			want: plan.AccessStep{
				Reason: "AccessFilesDiffer",
				Message: "policy.yaml: not the same as on host h1, whose files are recorded, and not " +
					"replaced: compare them, then decide with `windlass auth policy apply -f policy.yaml`",
			},
			since: now,
		},
		"which is said once": {
			state: "Kept", record: recorded(1, first), before: inState("Kept", fileReport(0, "x", "t1")),
			report: fileReport(0, "x", "t1"), since: start,
		},
		"a change of the first content on a host that had it is replaced": {
			state: "Replacing", record: recorded(1, first), report: fileReport(1, "p1", "x", "tokens"),
			want: plan.AccessStep{
				Give: true, Reason: "AccessFilesChanged", Message: "tokens changed on the host, and replaced by " +
					"generation 1: change the policy and the tokens of the cluster with `windlass auth`",
			},
			since: now,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &hostv1.SyncAccessRequest{Access: test.report}
			if test.texts {
				r.Policy, r.Tokens = new("p"), new("t")
			}
			got := plan.SyncAccess(plan.AccessView{Now: now, Access: test.record, Leader: test.leader},
				reporter("h2", test.before), r)
			want := proto.CloneOf(test.report)
			want.SinceTime = timestamppb.New(test.since)
			if test.state != "" {
				want.State = &test.state
			}
			if diff := cmp.Diff(want, got.Status, protocmp.Transform()); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			got.Status = nil
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("step (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetAccess(t *testing.T) {
	now := start.Add(time.Minute)
	by := func(a *hostv1.ClusterAccess) { a.ChangedBy, a.ChangeTime = "bob", timestamppb.New(now) }
	for name, test := range map[string]struct {
		record   *hostv1.ClusterAccess
		hosts    []*hostv1.Host
		request  *hostv1.SetClusterAccessRequest
		want     *hostv1.ClusterAccess
		refusal  string
		outdated bool
	}{
		"nothing is recorded": {
			request: &hostv1.SetClusterAccessRequest{Generation: 1, Policy: new("x")}, refusal: "not recorded yet",
		},
		"a policy": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 3, Policy: new("x")},
			want: recorded(3, by, func(a *hostv1.ClusterAccess) {
				a.Generation, a.PolicyGeneration, a.Policy, a.PolicyHash = 4, 4, "x", "x"
			}),
		},
		"tokens": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 3, Tokens: new("")},
			want: recorded(3, by, func(a *hostv1.ClusterAccess) {
				a.Generation, a.TokensGeneration, a.Tokens, a.TokensHash = 4, 4, "", ""
			}),
		},
		"the same": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 3, Policy: new("p3"), Tokens: new("t3")},
			want: recorded(3),
		},
		"the same again, after its answer was lost": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 2, Policy: new("p3")},
			want: recorded(3),
		},
		"the same confirms the first content": {
			record: recorded(1, first), request: &hostv1.SetClusterAccessRequest{Generation: 1, Policy: new("p1")},
			want: recorded(1, by, func(a *hostv1.ClusterAccess) { a.Generation = 2 }),
		},
		"tokens while a host has files of its own": {
			record: recorded(1, first), hosts: []*hostv1.Host{reporter("h2", fileReport(0, "x", "t1"))},
			request: &hostv1.SetClusterAccessRequest{Generation: 1, Tokens: new("x")},
			refusal: "host h2 has other files; policy.yaml: not the same as on host h1",
		},
		"a policy while a host has files of its own": {
			record: recorded(1, first), hosts: []*hostv1.Host{reporter("h2", fileReport(0, "x", "t1"))},
			request: &hostv1.SetClusterAccessRequest{Generation: 1, Policy: new("x")},
			want: recorded(1, by, func(a *hostv1.ClusterAccess) {
				a.Host, a.Generation, a.PolicyGeneration, a.Policy, a.PolicyHash = "", 2, 2, "x", "x"
			}),
		},
		"a policy that was changed since then": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 2, Policy: new("x")},
			refusal: `the policy changed in generation 3 (the last change, of generation 3, is by user "ann"`, outdated: true,
		},
		"a policy while the tokens were changed since then": {
			record:  recorded(3, func(a *hostv1.ClusterAccess) { a.PolicyGeneration = 2 }),
			request: &hostv1.SetClusterAccessRequest{Generation: 2, Policy: new("x")},
			want: recorded(3, by, func(a *hostv1.ClusterAccess) {
				a.Generation, a.PolicyGeneration, a.Policy, a.PolicyHash = 4, 4, "x", "x"
			}),
		},
		"tokens that were changed since then": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 2, Tokens: new("x")},
			refusal: "the tokens changed in generation 3", outdated: true,
		},
		"a generation that is not there, as after the restore of a snapshot": {
			record: recorded(3), request: &hostv1.SetClusterAccessRequest{Generation: 4, Policy: new("x")},
			refusal: "this change is based on generation 4", outdated: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.CloneOf(test.record)
			got, err := plan.SetAccess(plan.AccessView{Now: now, Access: test.record, Leader: "h1"}, test.hosts, test.request,
				test.request.GetPolicy(), test.request.GetTokens(), "bob")
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			var refusal *plan.AccessRefusal
			if errors.As(err, &refusal) != (test.refusal != "") ||
				refusal != nil && (!strings.Contains(refusal.Text, test.refusal) || refusal.Outdated != test.outdated) {
				t.Errorf("error %v, want %q", err, test.refusal)
			}
			if !proto.Equal(before, test.record) {
				t.Error("the record was modified")
			}
		})
	}
}

func TestAccessOnHosts(t *testing.T) {
	since := timestamppb.New(start)
	pending := func(a *hostv1.HostAccess) *hostv1.HostAccess { a.Pending = new("gateway has not loaded it"); return a }
	lost := func(h *hostv1.Host) *hostv1.Host { h.Status.Phase = new("Lost"); return h }
	worker := reporter("w1", nil)
	worker.Spec.Roles = []string{"worker"}
	for name, test := range map[string]struct {
		record  *hostv1.ClusterAccess
		host    *hostv1.Host
		state   string
		message string // its beginning
		fault   bool   // after two minutes
	}{
		"a host that has all in force": {recorded(3), reporter("h1", fileReport(3, "p3", "t3")), "InForce", "", false},
		"a host whose programs have not loaded it": {
			recorded(3), reporter("h1", pending(fileReport(3, "p3", "t3"))), "Pending", "gateway has not loaded it", false,
		},
		"a host that has older files": {
			recorded(3), reporter("h1", fileReport(2, "p2", "t3")), "Pending", "policy.yaml not replaced yet", true,
		},
		"a host that cannot write": {
			recorded(3), reporter("h1", pending(fileReport(2, "p2", "t2"))), "Pending",
			"policy.yaml and tokens not replaced yet: gateway", true,
		},
		"a host that has not noted it": {
			recorded(3), reporter("h1", fileReport(2, "p3", "t3")), "Pending",
			"it has not noted", false,
		},
		"a host that never reported": {recorded(3), reporter("h1", nil), "Pending", "it has not reported", false},
		"a host before anything is recorded": {
			nil, reporter("h1", fileReport(0, "p", "t")), "Pending", "nothing is recorded yet",
			false,
		},
		"a host that is away, though it has it": {
			recorded(3), lost(reporter("h1", fileReport(3, "p3", "t3"))), "Away", "it is away since 2027", false,
		},
		"a host with files of its own": {
			recorded(1, first), reporter("h1", fileReport(0, "p1", "x")), "Differs", "tokens: not the same as on host h1",
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := plan.AccessView{Now: start.Add(2 * time.Minute), Access: test.record, Leader: "h1"}
			hosts := []*hostv1.Host{worker, test.host}
			list, waits := plan.AccessOnHosts(v, hosts)
			if len(list) != 1 || list[0].GetState() != test.state || !strings.HasPrefix(list[0].GetMessage(), test.message) ||
				(test.message == "") != (list[0].GetMessage() == "") {
				t.Errorf("states %v, want %s: %s", list, test.state, test.message)
			}
			if test.host.GetStatus().GetAccess() != nil && !proto.Equal(list[0].GetSinceTime(), since) {
				t.Errorf("since %v", list[0].GetSinceTime())
			}
			if (waits == "") != (test.state == "InForce") {
				t.Errorf("waits for %q", waits)
			}
			if reason, message := plan.AccessFault(v, hosts); (reason != "") != test.fault ||
				test.fault && !strings.Contains(message, "host h1: ") {
				t.Errorf("fault %q: %q", reason, message)
			}
		})
	}
	v := plan.AccessView{Now: start.Add(30 * time.Second), Access: recorded(3)}
	if reason, _ := plan.AccessFault(v, []*hostv1.Host{reporter("h1", fileReport(2, "p2", "t2"))}); reason != "" {
		t.Errorf("a host that gets a change of the moment is a fault: %s", reason)
	}
}
