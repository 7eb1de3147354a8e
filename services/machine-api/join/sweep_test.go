package join

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// An older version left records of machines that were gone by then.
func TestRecordsOfMachinesThatAreGoneAreSwept(t *testing.T) {
	f := newFixture(t)
	fresh, token := f.machine(t, "fresh", plan.RoleWorker)
	joined, joinedToken := f.machine(t, "joined", plan.RoleMaster)
	req := &machinev1.JoinRequest{Token: joinedToken, AgentRequest: request(t)}
	if _, err := f.Join(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	_, err := f.tables.Machines.Modify(t.Context(), object.KeyOf(joined), func(m *machinev1.Machine) error {
		m.Status.NodeRef = &metav1.ObjectReference{Name: "joined"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	st := f.tokens.store
	left := 0
	for i := range 120 { // more than one commit takes
		for _, key := range []string{usedPrefix, sealedPrefix} {
			left++
			if _, err := st.Commit(t.Context(), store.Put(fmt.Sprintf("%sgone-%d", key, i), []byte("{}"), 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	next, err := f.tokens.Sweep(t.Context(), now, slog.New(slog.DiscardHandler))
	if err != nil || !next.Equal(now.Add(sweepEvery)) {
		t.Errorf("Sweep = %v, %v", next, err)
	}
	want := map[string]bool{
		usedPrefix + joined.Metadata.Uid: true, sealedPrefix + joined.Metadata.Uid: true,
		sealedPrefix + fresh.Metadata.Uid: true, keyRecord: true,
	}
	page, err := st.List(t.Context(), "join/", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		if !want[r.Key] {
			t.Errorf("record %s is left", r.Key)
		}
		delete(want, r.Key)
	}
	for key := range want {
		t.Errorf("record %s was removed", key)
	}
	// Machines that are there may do what they could: join, and repeat a join whose answer was lost.
	if _, err := f.Join(t.Context(), &machinev1.JoinRequest{Token: token, AgentRequest: request(t)}); err != nil {
		t.Errorf("a machine that had not joined: %v", err)
	}
	if _, err := f.Join(t.Context(), req); err != nil {
		t.Errorf("the same join again: %v", err)
	}
	if swept, err := f.tokens.sweep(t.Context()); swept != 0 || err != nil {
		t.Errorf("another sweep removed %d, %v", swept, err)
	}
}

// A machine whose object cannot be read is not gone.
func TestNothingIsSweptWhileAMachineCannotBeRead(t *testing.T) {
	f := newFixture(t)
	st := f.tokens.store
	if _, err := st.Commit(t.Context(), store.Put(sealedPrefix+"unreadable", []byte("{}"), 0)); err != nil {
		t.Fatal(err)
	}
	st.NoteUnreadable(store.Unreadable{Key: "machines/openshift-machine-api/m", Revision: 1, Err: "for the test"})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	next, err := f.tokens.Sweep(t.Context(), now, slog.New(slog.DiscardHandler))
	if !errors.Is(err, errUnreadableMachines) || !next.Equal(now.Add(sweepRetry)) {
		t.Errorf("Sweep = %v, %v; want %v", next, err, errUnreadableMachines)
	}
	if _, err := st.Get(t.Context(), sealedPrefix+"unreadable"); err != nil {
		t.Errorf("its record: %v", err)
	}
}
