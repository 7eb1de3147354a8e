package agents_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
)

func TestACommandIsSentOncePerStreamAndAgainOnTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := agents.New(func() {})
		var sent []string
		attend := func(ctx context.Context) {
			go func() {
				_ = r.Attend(ctx, agents.Offer{Node: "m0"}, func(m *etcdv1.AttendMemberResponse) error {
					sent = append(sent, m.GetCommand())
					return nil
				})
			}()
			synctest.Wait()
		}
		send := func(command string) {
			r.Send("m0", &etcdv1.AttendMemberResponse{Command: command})
			synctest.Wait()
		}
		send(agents.Start) // no agent is connected: nothing is kept for later
		first, stop := context.WithCancel(t.Context())
		attend(first)
		send(agents.Start)
		send(agents.Start)
		send(agents.Stop)
		attend(t.Context()) // the node comes again before its old stream is known to be dead
		send(agents.Stop)
		stop()
		synctest.Wait()
		send(agents.Wipe)
		if diff := cmp.Diff([]string{"Start", "Stop", "Stop", "Wipe"}, sent); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]agents.Offer{{Node: "m0", Told: "Wipe"}}, r.Offers()); diff != "" {
			t.Errorf("offers (-want +got):\n%s", diff)
		}
	})
}

func TestWhatToTrustIsSentOnceUnlessItIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := agents.New(func() {})
		var sent []string
		go func() {
			_ = r.Attend(t.Context(), agents.Offer{Node: "m0"}, func(m *etcdv1.AttendMemberResponse) error {
				sent = append(sent, m.GetCommand()+" "+m.GetTrust())
				return nil
			})
		}()
		synctest.Wait()
		for _, trust := range []string{"", "a", "a", "", "b", ""} {
			r.Send("m0", &etcdv1.AttendMemberResponse{Command: agents.Start, Trust: trust})
			synctest.Wait()
		}
		r.Forget("m0")
		r.Send("m0", &etcdv1.AttendMemberResponse{Command: agents.Start, Trust: "b"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"Start ", "Start a", "Start b", "Start b"}, sent); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
	})
}
