package plan_test

import (
	"testing"

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
		{"a follower whose database is half free is defragmented", []change{size("m1", 1000, 500)}, decision{Phase: "Stable", Next: "Defragment member m1"}},
		{"the leader comes last", []change{size("m0", 1000, 100), size("m2", 1000, 100)}, decision{Phase: "Stable", Next: "Defragment member m2"}},
		{"the leader comes", []change{size("m0", 1000, 100)}, decision{Phase: "Stable", Next: "Defragment member m0"}},
		{"not while somebody has the permit", []change{size("m1", 1000, 100), permitFor("m2", false)}, decision{Phase: "Stable"}},
		{
			"not while a voter is silent",
			[]change{size("m1", 1000, 100), silentFor("m2", 1)},
			decision{Phase: "Degraded", WaitsFor: "member m2 to answer (connection refused)"},
		},
		{"without space old revisions are dropped first", []change{full, size("m1", 2048, 2047)}, decision{Phase: "Stable", Next: "Compact"}},
		{"then what is free is given back", []change{full, compacted, size("m1", 2048, 1800)}, decision{Phase: "Stable", Next: "Defragment member m1"}},
		{"then writes are allowed", []change{full, compacted, size("m1", 1600, 1600)}, decision{Phase: "Stable", Next: "Disarm"}},
		{
			"without space the permit that another holds ends first: its holder can write nothing",
			[]change{full, compacted, size("m1", 2048, 1800), permitFor("m2", false)},
			decision{Phase: "Stable", Next: "FreePermit"},
		},
		{
			"where all of it is in use people are asked",
			[]change{full, compacted, size("m1", 2048, 2047)},
			decision{Phase: "Stable", WaitsFor: "space: etcd refuses writes; delete objects, or give the members a larger quota"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(stableView(c.changes...))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}
