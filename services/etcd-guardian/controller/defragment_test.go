package controller

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// TestADefragmentationDoesNotHoldUpTheLoop has a member that accepts the connection and never answers.
func TestADefragmentationDoesNotHoldUpTheLoop(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	elapsed := time.Minute
	c := &Controller{
		Config: Config{
			Members: members.New(insecure.NewCredentials()), Elapsed: func() time.Duration { return elapsed },
			Now: time.Now, Log: slog.New(slog.DiscardHandler),
		},
		loop: controller.NewLoop("quorum", 1, nil, slog.New(slog.DiscardHandler)), said: map[string]string{},
		memory: newMemory(store.Note{}),
	}
	defer c.Members.Close()
	run, end := context.WithCancel(t.Context())
	defer end()
	seen := func() plan.Member {
		c.collect(run)
		c.memory.answers = map[uint64]members.Answer{7: {Status: &etcdserverpb.StatusResponse{DbSize: 1000}}}
		return c.member(store.NoteMember{ID: 7, Name: "m0"}, true, elapsed)
	}
	c.defragment(run,
		plan.Action{Kind: plan.Defragment, Member: plan.Member{ID: 7, DBSize: 1000, ClientURLs: []string{
			"https://" + hung.Addr().String(),
		}}})
	if m := seen(); !m.Defragments || m.Tries != 1 {
		t.Errorf("while it lasts: defragments %t, tries %d, want true and 1", m.Defragments, m.Tries)
	}
	end()
	c.beside.Wait()
	at := elapsed
	if m := seen(); m.Defragments || m.Tries != 1 || m.TriedFor != 0 {
		t.Errorf("after it failed: defragments %t, tries %d, ended for %s, want false, 1 and 0s", m.Defragments, m.Tries,
			m.TriedFor)
	}
	elapsed = at + time.Minute
	if m := seen(); m.TriedFor != time.Minute {
		t.Errorf("a minute later: ended for %s", m.TriedFor)
	}
	c.memory.answers = map[uint64]members.Answer{7: {Status: &etcdserverpb.StatusResponse{DbSize: 400}}}
	if m := c.member(store.NoteMember{ID: 7, Name: "m0"}, true, elapsed); m.Tries != 0 {
		t.Errorf("once its database is smaller: %d tries, want none", m.Tries)
	}
}

// TestAnAlarmIsThatOfTheMemberThatRaisedIt: each member's status lists all alarms.
func TestAnAlarmIsThatOfTheMemberThatRaisedIt(t *testing.T) {
	raised := (&etcdserverpb.AlarmMember{MemberID: 7, Alarm: etcdserverpb.AlarmType_NOSPACE}).String()
	told := &etcdserverpb.StatusResponse{Errors: []string{raised, "etcdserver: no leader"}}
	got := alarms(map[uint64]members.Answer{7: {Status: told}, 8: {Status: told}, 9: {}})
	if len(got) != 1 || len(got[7]) != 1 || got[7][0] != "NOSPACE" {
		t.Errorf("alarms = %v, want NOSPACE of member 7 alone", got)
	}
}
