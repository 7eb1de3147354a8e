package plan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

func TestSpace(t *testing.T) {
	const mib = 1 << 20
	size := func(name string, file, used int64) change {
		return member(name, func(m *plan.Member) { m.DBSize, m.DBInUse, m.Quota = file*mib, used*mib, 2048*mib })
	}
	full := func(v *plan.View) { v.NoSpace = true }
	compacted := func(v *plan.View) { v.Compacted = true }
	cases := []struct {
		name    string
		changes []change
		want    decision
	}{
		{"a small database is left alone", []change{size("m1", 99, 1)}, decision{Phase: "Stable"}},
		{"one that is mostly in use too", []change{size("m1", 1000, 501)}, decision{Phase: "Stable"}},
		{
			"a follower whose database is half free is defragmented",
			[]change{size("m1", 1000, 500)},
			decision{Phase: "Stable", Next: "Defragment member m1"},
		},
		{
			"the leader comes last",
			[]change{size("m0", 1000, 100), size("m2", 1000, 100)},
			decision{Phase: "Stable", Next: "Defragment member m2"},
		},
		{"the leader comes", []change{size("m0", 1000, 100)}, decision{Phase: "Stable", Next: "Defragment member m0"}},
		{
			"not while the permit is held",
			[]change{size("m1", 1000, 100), permitFor("m2", false)},
			decision{Phase: "Stable"},
		},
		{
			"not while a voter is silent",
			[]change{size("m1", 1000, 100), silentFor("m2", 1)},
			decision{Phase: "Degraded", WaitsFor: "member m2 to answer (connection refused)"},
		},
		{
			"without space old revisions are dropped first",
			[]change{full, size("m1", 2048, 2047)},
			decision{Phase: "Stable", Next: "Compact"},
		},
		{
			"then what is free is given back",
			[]change{full, compacted, size("m1", 2048, 1800)},
			decision{Phase: "Stable", Next: "Defragment member m1"},
		},
		{
			"then writes are allowed",
			[]change{full, compacted, size("m1", 1600, 1600)},
			decision{Phase: "Stable", Next: "Disarm"},
		},
		{
			"without space the permit that another holds ends first: its holder can write nothing",
			[]change{full, compacted, size("m1", 2048, 1800), permitFor("m2", false)},
			decision{Phase: "Stable", Next: "FreePermit"},
		},
		{
			"where all of it is in use people are asked",
			[]change{full, compacted, size("m1", 2048, 2047)},
			decision{
				Phase: "Stable", WaitsFor: "space: etcd refuses writes; delete objects, or give the members a larger quota",
			},
		},
	}
	tried := func(name string, times int, ago time.Duration) change {
		return member(name, func(m *plan.Member) { m.Tries, m.TriedFor = times, ago })
	}
	defragments := func(name string) change {
		return member(name, func(m *plan.Member) { m.Defragments = true })
	}
	since := func(v *plan.View) { v.NoSpaceSince = "2026-01-02T03:04:05Z" }
	quota := func(mib int64) change { return func(v *plan.View) { v.Quota = mib << 20 } }
	ours := func(v *plan.View) {
		permitFor("m1", false)(v)
		v.Permit.Holder, v.Permit.Reason, v.Permit.Ours = plan.GuardianUser, plan.DefragmentationReason, true
	}
	cases = append(cases, []struct {
		name    string
		changes []change
		want    decision
	}{
		{"while a member is defragmented nothing else is done", []change{
			size("m1", 1000, 100), size("m2", 1000, 100), ours,
			defragments("m1"),
		}, decision{Phase: "Stable", WaitsFor: "member m1 to be defragmented"}},
		{
			"it is said why it is silent",
			[]change{size("m1", 1000, 100), ours, defragments("m1"), silentFor("m1", time.Second)},
			decision{Phase: "Degraded", WaitsFor: "member m1 to be defragmented"},
		},
		{"its permit ends with it", []change{size("m1", 1000, 100), ours}, decision{Phase: "Stable", Next: "FreePermit"}},
		{
			"after one try that did not help there is a pause of a minute",
			[]change{size("m1", 1000, 100), tried("m1", 1, 59*time.Second)},
			decision{Phase: "Stable"},
		},
		{
			"then it is tried again",
			[]change{size("m1", 1000, 100), tried("m1", 1, time.Minute)},
			decision{Phase: "Stable", Next: "Defragment member m1"},
		},
		{"the pause doubles", []change{size("m1", 1000, 100), tried("m1", 3, 3*time.Minute)}, decision{Phase: "Stable"}},
		{
			"up to an hour",
			[]change{size("m1", 1000, 100), tried("m1", 99, time.Hour)},
			decision{Phase: "Stable", Next: "Defragment member m1"},
		},
		{
			"the others do not wait for it",
			[]change{size("m1", 1000, 100), size("m2", 1000, 100), tried("m1", 1, 0)},
			decision{Phase: "Stable", Next: "Defragment member m2"},
		},
		{
			"without space the pause is the same",
			[]change{full, compacted, size("m1", 2048, 1800), tried("m1", 1, 0)},
			decision{
				Phase: "Stable", WaitsFor: "space: etcd refuses writes; members are defragmented again after a pause",
			},
		},
		{
			"without space old revisions are dropped though a voter is silent",
			[]change{full, size("m1", 2048, 1800), silentFor("m2", time.Second)},
			decision{Phase: "Degraded", Next: "Compact"},
		},
		{
			"but no member is defragmented if no majority were left",
			[]change{full, since, compacted, size("m1", 2048, 1800), silentFor("m2", time.Second)},
			decision{
				Phase:    "Degraded",
				WaitsFor: "space: etcd refuses writes since 2026-01-02T03:04:05Z; the others are defragmented when member m2 answers: bring it back, or delete its machine",
			},
		},
		{
			"writes are allowed again though a voter is silent",
			[]change{full, size("m1", 1600, 1600), silentFor("m2", time.Second)},
			decision{Phase: "Degraded", Next: "Disarm"},
		},
		{
			"members that have less than the quota that is set are started again",
			[]change{size("m0", 1, 1), size("m1", 1, 1), size("m2", 1, 1), quota(4096)},
			decision{Phase: "Stable", Next: "AcquirePermit member m1"},
		},
		{
			"without space the permit cannot be written",
			[]change{full, compacted, size("m1", 2048, 2047), quota(4096)},
			decision{Phase: "Stable", Next: "RestartMember member m1"},
		},
		{
			"one at a time",
			[]change{
				full, compacted, size("m1", 2048, 2047), size("m2", 2048, 2047), quota(4096),
				member("m1", func(m *plan.Member) { m.Restarting = true }), silentFor("m1", time.Second),
			},
			decision{
				Phase:    "Degraded",
				WaitsFor: "space: etcd refuses writes; delete objects, or give the members a larger quota; member m1 does not answer: bring it back, or delete its machine",
			},
		},
	}...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(stableView(c.changes...))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}
