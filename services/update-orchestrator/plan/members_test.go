package plan_test

import (
	"strings"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func TestMembers(t *testing.T) {
	runs := func(name, version, next string) *etcdv1.Member {
		return &etcdv1.Member{Name: name, Version: version, NextVersion: next, Healthy: true}
	}
	down := runs("m1", "", "3.6.6")
	down.Healthy, down.Message = false, "it cannot be reached"
	first := runs("bootstrap", "3.6.5", "")
	first.Bootstrap = true
	for name, c := range map[string]struct {
		members []*etcdv1.Member
		held    []*metav1.HeldBack
		brings  bool
		waits   string // part of what is seen; empty if nothing is waited for
	}{
		"all run what their hosts have": {
			members: []*etcdv1.Member{runs("m1", "3.6.6", "3.6.6"), runs("m2", "3.6.6", "3.6.6")}, brings: true,
		},
		"one runs another version": {
			members: []*etcdv1.Member{runs("m1", "3.6.6", "3.6.6"), runs("m2", "3.6.5", "3.6.6")}, brings: true,
			waits: "m2 runs etcd 3.6.5 and has to run 3.6.6",
		},
		"one starts again": {
			members: []*etcdv1.Member{down}, brings: true,
			waits: "m1 is not healthy: it cannot",
		},
		"an agent has not reported": {
			members: []*etcdv1.Member{runs("m1", "3.6.5", "")}, brings: true,
			waits: "m1: the agent",
		},
		"no agent has to":               {members: []*etcdv1.Member{runs("m1", "3.6.5", "")}},
		"the first member is no host's": {members: []*etcdv1.Member{first}, brings: true},
		"no members are known":          {brings: true, waits: "no members are known"},
		"what is held back says what for": {
			members: []*etcdv1.Member{runs("m1", "3.6.5", "3.5.9")}, brings: true,
			held: []*metav1.HeldBack{{
				Action: "RestartMember", Object: &metav1.ObjectReference{Name: "m1"}, Reason: "it cannot", Unblock: "a later one",
			}},
			waits: "m1 is not restarted: it cannot; to resolve it: a later one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := plan.Members(&etcdv1.PlanQuorumResponse{
				Quorum: &etcdv1.Quorum{Members: c.members}, HeldBack: c.held,
			}, c.brings)
			if r.Ready != (c.waits == "") || !strings.Contains(r.Observed, c.waits) {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestAnUpdateIsNotCompletedBeforeTheMembersOfEtcd(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := plan.NewPass(plan.PassView{
		Version: "1.1.0", Mode: plan.Updating, Members: plan.MembersManifest(), Sightings: plan.Sightings{},
	})
	follows := func() (id string) {
		for _, a := range p.Next(now, nil, nil).Do {
			if a.Verb == plan.Follow {
				id = a.Manifest.ID
			}
		}
		return id
	}
	if id := follows(); id != "#members" || p.Completed() {
		t.Fatalf("it follows %q, completed: %v", id, p.Completed())
	}
	p.Rolled("#members", plan.Rollout{Reason: "MembersNotUpdated", Fact: "each member runs it", Observed: "m1 runs 3.6.5"},
		now)
	if follows(); p.Completed() {
		t.Error("completed with a member of another version")
	}
	waits := p.Progress().GetWaits()
	if len(waits) != 1 || waits[0].GetObserved() != "m1 runs 3.6.5" || !waits[0].GetSince().AsTime().Equal(now) {
		t.Errorf("it waits for %v", waits)
	}
	p.Rolled("#members", plan.Rollout{Ready: true}, now)
	if follows(); !p.Completed() {
		t.Error("not completed with all members at their version")
	}
}
