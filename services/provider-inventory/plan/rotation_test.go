package plan_test

import (
	"errors"
	"math/rand/v2"
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

const (
	prepare  = hostv1.Rotation_STEP_PREPARE
	activate = hostv1.Rotation_STEP_ACTIVATE
	retire   = hostv1.Rotation_STEP_RETIRE
)

// rotating returns the rotation of an authority in a step.
func rotating(authority string, step, goal hostv1.Rotation_Step) *hostv1.Rotation {
	trust := "both"
	if step == retire {
		trust = "next"
	}
	return &hostv1.Rotation{
		Id: "next", Authority: authority, Step: step, Goal: goal, NextCertificate: []byte("ca"), Trust: trust,
		Host: "h1", StartTime: timestamppb.New(start), StepTime: timestamppb.New(start),
	}
}

// plane returns a control-plane host that has completed a step; later changes apply to it.
func plane(name string, step hostv1.Rotation_Step, changes ...func(*hostv1.Host)) *hostv1.Host {
	h := &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name}, Spec: &hostv1.HostSpec{
			Roles: []string{"control-plane"},
		},
		Status: &hostv1.HostStatus{
			Phase: new("InUse"), LastTransitionTime: timestamppb.New(start),
			Certificates: &hostv1.HostCertificates{RotationId: new("next"), Trust: new("both"), Step: new("Prepared")},
		},
	}
	c := h.Status.Certificates
	switch step {
	case prepare:
		c.Completed = new("Prepare")
	case activate:
		c.Completed, c.Step = new("Activate"), new("Activated")
	case retire:
		c.Completed, c.Step, c.Trust = new("Retire"), new("Retired"), new("next")
	}
	for _, change := range changes {
		change(h)
	}
	return h
}

func workerHost(h *hostv1.Host) { h.Spec.Roles = []string{"worker"} }
func away(h *hostv1.Host)       { h.Status.Phase, h.Status.ResumePhase = new("Lost"), new("InUse") }
func unreported(h *hostv1.Host) { h.Status.Certificates = nil }
func claimedHost(h *hostv1.Host) {
	h.Status.Phase = new("Claimed")
}

func pending(text string) func(*hostv1.Host) {
	return func(h *hostv1.Host) { h.Status.Certificates.Pending, h.Status.Certificates.Completed = &text, nil }
}

func asks(key string) func(*hostv1.Host) {
	return func(h *hostv1.Host) {
		c := h.Status.Certificates
		c.Completed, c.Step, c.Trust = nil, new("Steady"), new("former")
		c.Pending, c.SealingKey, c.SealingSignature = new("it waits for the key"), []byte(key), []byte("sig")
	}
}

func TestNextStepOfARotation(t *testing.T) {
	for _, c := range []struct {
		name     string
		rotation *hostv1.Rotation
		hosts    []*hostv1.Host
		verb     string
		waits    string
	}{
		{"without a rotation nothing is done", nil, []*hostv1.Host{plane("h1", 0)}, "", ""},
		{
			"once all hosts trust the next authority, it signs",
			rotating("windlass", prepare, activate),
			[]*hostv1.Host{plane("h1", prepare), plane("w", prepare, workerHost)},
			plan.AdvanceRotation, "",
		},
		{
			"a host that is away holds the step, with since when and what resolves it",
			rotating("windlass", prepare, activate),
			[]*hostv1.Host{plane("h1", prepare), plane("h3", prepare, away)},
			"", "1 of 2 hosts: host h3 is away since " + start.UTC().Format(time.RFC3339) +
				"; start it, or remove it with `windlass host remove h3`",
		},
		{
			"a worker holds the authority of services",
			rotating("windlass", activate, retire),
			[]*hostv1.Host{plane("h1", activate), plane("w", activate, workerHost, pending("certificate x is of the former"))},
			"", "1 of 2 hosts: host w has not completed the step: certificate x is of the former",
		},
		{
			"a worker has no certificates of etcd",
			rotating("etcd-peer", activate, retire),
			[]*hostv1.Host{plane("h1", activate), plane("w", 0, workerHost, unreported, away)},
			plan.AdvanceRotation, "",
		},
		{
			"a host that has not reported holds the step",
			rotating("windlass", prepare, activate),
			[]*hostv1.Host{plane("h1", prepare), plane("h2", 0, unreported)},
			"", "1 of 2 hosts: host h2 has not reported on this rotation yet",
		},
		{
			"a report on the step before does not count",
			rotating("windlass", activate, retire),
			[]*hostv1.Host{plane("h1", prepare)},
			"", "1 of 1 hosts: host h1 has not completed the step",
		},
		{
			"a host that trusts something else holds the step",
			rotating("windlass", retire, retire),
			[]*hostv1.Host{plane("h1", retire, func(h *hostv1.Host) { h.Status.Certificates.Trust = new("both") })},
			"", "1 of 1 hosts: host h1 trusts both, not next",
		},
		{
			"a host that starts a machine holds the first step, since the token names what was trusted before",
			rotating("windlass", prepare, activate),
			[]*hostv1.Host{plane("h1", prepare, claimedHost)},
			"", "1 of 1 hosts: host h1 starts a machine, which may not know the next authority",
		},
		{
			"the goal ends the steps",
			rotating("windlass", activate, activate),
			[]*hostv1.Host{plane("h1", activate)},
			"", "",
		},
		{
			"the last step ends the rotation",
			rotating("windlass", retire, retire),
			[]*hostv1.Host{plane("h1", retire)},
			plan.FinishRotation, "",
		},
		{
			"without a host that has the next authority's key it is made again",
			rotating("windlass", prepare, activate),
			[]*hostv1.Host{plane("h2", 0, asks("k"))},
			"", "the key of the next authority, which no host that reports has: run `windlass auth rotate` again on a " +
				"control-plane host, or start the host that began it, h1",
		},
		{
			"an inventory without hosts is not enough", rotating("windlass", prepare, retire), nil, "",
			"hosts: the inventory has none",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := proto.CloneOf(c.rotation)
			got := plan.Rotate(plan.RotationView{Now: start.Add(time.Minute), Rotation: c.rotation, Hosts: c.hosts})
			if got.Verb != c.verb || got.WaitsFor != c.waits {
				t.Errorf("%q, waits for %q; want %q, %q", got.Verb, got.WaitsFor, c.verb, c.waits)
			}
			if c.verb == plan.AdvanceRotation && got.Next.GetStep() != c.rotation.GetStep()+1 {
				t.Errorf("next step %v", got.Next.GetStep())
			}
			if last := got.Next.GetStep() == retire; last != (got.Next.GetTrust() == c.rotation.GetId()) && got.Next != nil {
				t.Errorf("hosts trust %[2]s in %[1]v", got.Next.GetStep(), got.Next.GetTrust())
			}
			if diff := cmp.Diff(before, c.rotation, protocmp.Transform()); diff != "" {
				t.Errorf("the view was changed: %s", diff)
			}
		})
	}
}

func TestAHostWhoseRecordCannotBeReadHoldsARotation(t *testing.T) {
	got := plan.Rotate(plan.RotationView{
		Now: start, Rotation: rotating("windlass", prepare, activate), Hosts: []*hostv1.Host{plane("h1", prepare)},
		Unreadable: []string{"h7"},
	})
	if got.Verb != "" || !strings.HasPrefix(got.WaitsFor, "the record of host h7, which cannot be read") {
		t.Errorf("%q, waits for %q", got.Verb, got.WaitsFor)
	}
}

func TestOneRotationAtATime(t *testing.T) {
	begun := func() *hostv1.Rotation { r := rotating("windlass", prepare, activate); r.Id = "other"; return r }
	present := rotating("windlass", prepare, activate)
	for _, c := range []struct {
		name      string
		view      plan.RotationView
		authority string
		goal      hostv1.Rotation_Step
		begun     *hostv1.Rotation
		id        string
		want      hostv1.Rotation_Step
		err       string
	}{
		{
			name: "the first request begins it", authority: "windlass", goal: activate, begun: begun(), id: "other",
			want: activate,
		},
		{name: "none is finished that was not begun", authority: "windlass", goal: retire, err: "no rotation to finish"},
		{
			name: "another authority waits", view: plan.RotationView{Rotation: present}, authority: "etcd-peer", goal: retire,
			begun: begun(), err: "finish it with `windlass auth rotate api --finish`",
		},
		{
			name: "a request with a later goal moves it", view: plan.RotationView{Rotation: present}, authority: "windlass",
			goal: retire, id: "next", want: retire,
		},
		{
			name: "an earlier goal changes nothing", view: plan.RotationView{Rotation: present}, authority: "windlass",
			goal: prepare, id: "next", want: activate,
		},
		{
			name:      "of two hosts that begin one the first counts",
			view:      plan.RotationView{Rotation: present, Hosts: []*hostv1.Host{plane("h1", prepare)}},
			authority: "windlass", goal: activate, begun: begun(), id: "next", want: activate,
		},
		{
			name:      "another next authority counts once the host with the key of the first is away",
			view:      plan.RotationView{Rotation: present, Hosts: []*hostv1.Host{plane("h1", prepare, away)}},
			authority: "windlass", goal: activate, begun: begun(), id: "other", want: activate,
		},
		{
			name: "a host that asks for the key does not have it, though its disk has another next authority",
			view: plan.RotationView{Rotation: present, Hosts: []*hostv1.Host{
				plane("h1", prepare, away), plane("h2", prepare, asks("k"), func(h *hostv1.Host) {
					h.Status.Certificates.Step = new("Prepared")
				}),
			}},
			authority: "windlass", goal: activate, begun: begun(), id: "other", want: activate,
		},
		{
			name: "what signs is never replaced by a repeated request",
			view: plan.RotationView{Rotation: rotating("windlass", activate, activate), Hosts: []*hostv1.Host{
				plane("h1", activate, away),
			}},
			authority: "windlass", goal: activate, begun: begun(), id: "next", want: activate,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := plan.Begin(c.view, c.authority, c.goal, c.begun)
			if refusal := new(plan.RotationRefusal); c.err != "" {
				if !errors.As(err, &refusal) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got.GetId() != c.id || got.GetGoal() != c.want {
				t.Errorf("rotation %s with goal %v, %v", got.GetId(), got.GetGoal(), err)
			}
		})
	}
}

func TestKeysAreEncryptedForTheHostsThatAsk(t *testing.T) {
	r := rotating("windlass", prepare, activate)
	r.SealedKeys = []*hostv1.SealedKey{{Host: "h2", SealingKey: []byte("earlier"), Sealed: []byte("1")}}
	v := plan.RotationView{Rotation: r, Hosts: []*hostv1.Host{
		plane("h1", prepare), plane("h2", 0, asks("k2")), plane("h3", 0, asks("k3")), plane("w", 0, asks("kw"), workerHost),
	}}
	want := []*hostv1.SealingKey{
		{Host: "h2", Key: []byte("k2"), Signature: []byte("sig")}, {Host: "h3", Key: []byte("k3"), Signature: []byte("sig")},
	}
	if diff := cmp.Diff(want, plan.Wanted(v), protocmp.Transform()); diff != "" {
		t.Errorf("wanted (-want +got):\n%s", diff)
	}
	given := []*hostv1.SealedKey{
		{Host: "h2", SealingKey: []byte("k2"), Sealed: []byte("2")},
		{
			Host: "h3", SealingKey: []byte("earlier"),
			Sealed: []byte("x"),
		},
		{Host: "w", SealingKey: []byte("kw"), Sealed: []byte("x")},
		{Host: "h9", SealingKey: []byte("k"), Sealed: []byte("x")},
	}
	next, changed := plan.Sealed(v, given)
	if !changed {
		t.Error("nothing was changed")
	}
	if diff := cmp.Diff(given[:1], next.GetSealedKeys(), protocmp.Transform()); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	v.Rotation = next
	if _, changed := plan.Sealed(v, given); changed {
		t.Error("a key that is there was encrypted again")
	}
}

// The promise of a rotation: no step is taken while a host that is concerned is away or has not completed the present
// one.
func TestNoStepIsTakenBeforeAllHostsHaveCompletedThePresentOne(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	steps := []hostv1.Rotation_Step{0, prepare, activate, retire}
	changes := []func(*hostv1.Host){
		func(*hostv1.Host) {}, func(*hostv1.Host) {}, func(*hostv1.Host) {}, away, unreported, workerHost, pending("x"),
		asks("k"), claimedHost,
	}
	taken := 0
	for range 20000 {
		r := rotating("windlass", steps[1+rnd.IntN(3)], steps[1+rnd.IntN(3)])
		var hosts []*hostv1.Host
		for i := range 1 + rnd.IntN(4) {
			done := r.GetStep()
			if rnd.IntN(8) == 0 {
				done = steps[rnd.IntN(4)]
			}
			hosts = append(hosts, plane(string(rune('a'+i)), done, changes[rnd.IntN(len(changes))]))
		}
		got := plan.Rotate(plan.RotationView{Now: start, Rotation: r, Hosts: hosts})
		if got.Verb == "" {
			continue
		}
		taken++
		if got.Verb == plan.AdvanceRotation && (r.GetStep() >= r.GetGoal() || got.Next.GetStep() != r.GetStep()+1) {
			t.Fatalf("from %v to %v with goal %v", r.GetStep(), got.Next.GetStep(), r.GetGoal())
		}
		name := map[hostv1.Rotation_Step]string{prepare: "Prepare", activate: "Activate", retire: "Retire"}[r.GetStep()]
		for _, h := range hosts {
			if c := h.GetStatus().GetCertificates(); h.GetStatus().GetPhase() == "Lost" || c.GetCompleted() != name ||
				c.GetPending() != "" || c.GetRotationId() != r.GetId() {
				t.Fatalf("%s while host %v", got.Verb, h)
			}
		}
	}
	if taken < 100 {
		t.Errorf("only %d steps were taken", taken)
	}
}
