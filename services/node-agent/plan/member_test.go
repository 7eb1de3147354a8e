package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMember(t *testing.T) {
	first := Record{State: memberRunning, Name: "m-0", InitialCluster: "boot=x,m-0=y", ClusterToken: "t"}
	kept := first
	kept.HadData = true
	state := func(s string) *Record { r := kept; r.State = s; return &r }
	begin := Order{Command: Start, Name: "m-0", InitialCluster: "boot=x,m-0=y", ClusterToken: "t"}
	later := Order{Command: Start, Name: "m-0", InitialCluster: "m-1=z,m-0=y", ClusterToken: "t"}
	renewed := later
	renewed.Trust = "next"
	executable := later
	executable.RenewExecutable = true
	larger, turn, grown := begin, renewed, kept
	larger.QuotaBytes, turn.QuotaBytes, grown.QuotaBytes = 4<<30, 4<<30, 4<<30
	sized := first
	sized.QuotaBytes = 4 << 30
	later2 := Record{State: memberRunning, Name: "m-0", InitialCluster: "m-1=z,m-0=y", ClusterToken: "t"}
	for _, tc := range []struct {
		name string
		view MemberView
		want MemberPlan
	}{
		{"no member is wanted", MemberView{}, MemberPlan{}},
		{
			"an order to start is written down before the process runs",
			MemberView{Order: begin},
			MemberPlan{Write: &first, Run: &first},
		},
		{
			"the same order again only keeps the process running",
			MemberView{Record: &kept, HasData: true, Order: begin},
			MemberPlan{Run: &kept},
		},
		{"the disk alone keeps the process running", MemberView{Record: &kept, HasData: true}, MemberPlan{Run: &kept}},
		{"the disk alone keeps the process running before it has data", MemberView{Record: &first}, MemberPlan{Run: &first}},
		{"once there is data other first members do not restart the process", MemberView{
			Record: &kept, HasData: true,
			Order: later,
		}, MemberPlan{Run: &kept}},
		{
			"before there is data other first members count",
			MemberView{Record: &first, Order: later},
			MemberPlan{Write: &later2, Run: &later2},
		},
		{
			"data of another member is not started",
			MemberView{Record: &kept, HasData: true, Order: Order{Command: Start, Name: "m-9", ClusterToken: "t"}},
			MemberPlan{Refuse: "there is data of member m-0, cluster t"},
		},
		{
			"data of another cluster is not started",
			MemberView{Record: &kept, HasData: true, Order: Order{Command: Start, Name: "m-0", ClusterToken: "u"}},
			MemberPlan{Refuse: "there is data of member m-0, cluster t"},
		},
		{"a stopped member stays stopped", MemberView{Record: state(stopped), HasData: true}, MemberPlan{}},
		{
			"an order to stop is written down first",
			MemberView{Record: &kept, HasData: true, Order: Order{Command: Stop}},
			MemberPlan{Write: state(stopped), Halt: true},
		},
		{
			"an order to stop may be repeated",
			MemberView{Record: state(stopped), HasData: true, Order: Order{Command: Stop}},
			MemberPlan{Halt: true},
		},
		{"there is nothing to stop without a member", MemberView{Order: Order{Command: Stop}}, MemberPlan{}},
		{
			"a stopped member starts again with its data",
			MemberView{Record: state(stopped), HasData: true, Order: later},
			MemberPlan{Write: &kept, Run: &kept},
		},
		{
			"an order to wipe is written down first",
			MemberView{Record: &kept, HasData: true, Order: Order{Command: Wipe}},
			MemberPlan{Write: state(wiping), Halt: true, Erase: true},
		},
		{"there is nothing to wipe without a member", MemberView{Order: Order{Command: Wipe}}, MemberPlan{}},
		{
			"unrecorded data is wiped, too",
			MemberView{HasData: true, Order: Order{Command: Wipe}},
			MemberPlan{Write: &Record{State: wiping}, Halt: true, Erase: true},
		},
		{"a member that the cluster removed is wiped without an order", MemberView{
			Record: &kept, HasData: true,
			Removed: true,
		}, MemberPlan{Write: state(wiping), Halt: true, Erase: true}},
		{"a wipe that was interrupted comes before everything", MemberView{
			Record: state(wiping), HasData: true,
			Order: begin,
		}, MemberPlan{Halt: true, Erase: true}},
		{
			"a member that has to trust other authorities is started again",
			MemberView{Record: &kept, HasData: true, Trust: "former", Order: renewed},
			MemberPlan{Restart: true, Run: &kept},
		},
		{
			"one that trusts them already is not",
			MemberView{Record: &kept, HasData: true, Trust: "next", Order: renewed},
			MemberPlan{Run: &kept},
		},
		{
			"a member that runs from another executable is started again on an order",
			MemberView{Record: &kept, HasData: true, Other: true, Order: executable},
			MemberPlan{Restart: true, Run: &kept},
		},
		{
			"one that runs from that executable already is not",
			MemberView{Record: &kept, HasData: true, Order: executable},
			MemberPlan{Run: &kept},
		},
		{
			"nor is one without an order",
			MemberView{Record: &kept, HasData: true, Other: true, Order: later},
			MemberPlan{Run: &kept},
		},
		{"an order that does not say what to trust restarts nothing", MemberView{
			Record: &kept, HasData: true,
			Trust: "former", Order: later,
		}, MemberPlan{Run: &kept}},
		{"a new member has the quota that is ordered", MemberView{Order: larger}, MemberPlan{Write: &sized, Run: &sized}},
		{"one that runs keeps its own", MemberView{Record: &kept, HasData: true, Order: larger}, MemberPlan{Run: &kept}},
		{
			"until it is its turn to start again",
			MemberView{Record: &kept, HasData: true, Trust: "next", Order: turn},
			MemberPlan{Write: &grown, Run: &grown},
		},
		{"nor does the disk alone", MemberView{Record: &kept, HasData: true, Trust: "former"}, MemberPlan{Run: &kept}},
		{
			"a member without data is started again, too",
			MemberView{Record: &later2, Trust: "former", Order: renewed},
			MemberPlan{Restart: true, Run: &later2},
		},
		{
			"an order that is refused restarts nothing",
			MemberView{Record: &kept, Trust: "former", Order: renewed},
			MemberPlan{Refuse: "the data of member m-0 is lost; it can join again only as a new member"},
		},
		{
			"an order that is not known is refused",
			MemberView{Order: Order{Command: "Dance"}},
			MemberPlan{Refuse: "unknown command Dance"},
		},
		{
			"that there is data is written down",
			MemberView{Record: &first, HasData: true},
			MemberPlan{Write: &kept, Run: &kept},
		},
		{
			"a member whose data is lost is not started empty by the disk",
			MemberView{Record: &kept},
			MemberPlan{Refuse: "the data of member m-0 is lost; it can join again only as a new member"},
		},
		{
			"a member whose data is lost is not started empty by an order",
			MemberView{Record: &kept, Order: later},
			MemberPlan{Refuse: "the data of member m-0 is lost; it can join again only as a new member"},
		},
		{
			"what is left of a member whose data is lost can be wiped",
			MemberView{Record: &kept, Order: Order{Command: Wipe}},
			MemberPlan{Write: state(wiping), Halt: true, Erase: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Member(tc.view)); diff != "" {
				t.Errorf("Member (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMemberIsNeverStartedFromNothing plays orders, crashes and removals: a process runs only with settings that the
// disk has, and data is removed only after the disk says so.
func TestMemberIsNeverStartedFromNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var disk *Record
		data, running := false, false
		orders := rapid.SampledFrom([]Order{
			{},
			{Command: Stop},
			{Command: Wipe},
			{Command: Start, Name: "m", InitialCluster: "a", ClusterToken: "t"},
			{Command: Start, Name: "m", InitialCluster: "b", ClusterToken: "u"},
		})
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			p := Member(MemberView{
				Record: disk, HasData: data, Order: orders.Draw(t, "order"),
				Removed: running && rapid.IntRange(0, 9).Draw(t, "removed") == 0,
			})
			// A crash may cut the plan short after each of its parts.
			parts := rapid.IntRange(0, 4).Draw(t, "parts done")
			if p.Write != nil && parts > 0 {
				disk = p.Write
			}
			if p.Halt && parts > 1 {
				running = false
			}
			if p.Erase && parts > 2 {
				if disk != nil && disk.State != wiping {
					t.Fatalf("data removed while the disk says %v", disk)
				}
				data, disk = false, nil
			}
			if p.Run != nil && parts > 3 {
				if disk == nil || *disk != *p.Run || disk.State != memberRunning {
					t.Fatalf("process runs with %v while the disk says %v", p.Run, disk)
				}
				running, data = true, true
			}
			if running && disk == nil {
				t.Fatal("a process runs of which the disk does not know")
			}
		}
	})
}

func TestRenewAt(t *testing.T) {
	issued := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		lifetime := time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(t, "lifetime"))
		got := RenewAt(issued, issued.Add(lifetime), rapid.Float64Range(0, 0.999).Draw(t, "chance")).Sub(issued)
		if got < lifetime*7/10-time.Microsecond || got > lifetime*9/10+time.Microsecond {
			t.Fatalf("renewed after %v of %v", got, lifetime)
		}
	})
	if got := RenewAt(issued, issued.Add(-time.Hour), 0.5); !got.Equal(issued) {
		t.Errorf("a certificate that ended before it was issued is renewed at %v", got)
	}
}
