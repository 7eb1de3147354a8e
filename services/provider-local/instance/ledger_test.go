package instance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/kit/ledger"
)

func create(t *testing.T, m *Manager, token, machine string, fence int64) *Instance {
	t.Helper()
	r := request(token, machine, token, Spec{Failure: Failure{Boot: "Never"}})
	r.Fence = fence
	i, err := m.Create(r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func erased(t *testing.T, m *Manager) {
	t.Helper()
	wait(t, m, func(l []*Instance) bool { return len(l) == 0 })
}

func TestATokenWhoseInstanceWasDeletedMakesNoOther(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	first := create(t, m, "uid-1", "worker-a", 0)
	if err := m.Delete(first.ProviderID, "uid-1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(request("uid-1", "worker-a", "uid-1", Spec{})); !errors.Is(err, ErrUsed) {
		t.Errorf("a creation while its instance is being deleted: %v, want ErrUsed", err)
	}
	erased(t, m)
	if err := m.Delete("", "never-used", 0); err != nil {
		t.Fatal(err)
	}
	stop()
	m, stop = start(t, dir) // it is on the disk
	defer stop()
	for _, token := range []string{"uid-1", "never-used"} {
		if i, err := m.Create(request(token, "worker-a", token, Spec{})); !errors.Is(err, ErrUsed) {
			t.Errorf("a late creation for %s = %+v, %v; want ErrUsed", token, i, err)
		}
	}
}

func TestALateDeletionSparesTheSuccessor(t *testing.T) {
	m, stop := start(t, t.TempDir())
	defer stop()
	first := create(t, m, "uid-1", "worker-a", 0)
	if err := m.Delete(first.ProviderID, "uid-1", 0); err != nil {
		t.Fatal(err)
	}
	erased(t, m)
	next := create(t, m, "uid-2", "worker-a", 0)
	if next.ProviderID == first.ProviderID {
		t.Fatalf("the successor has the id %s of the instance before it", next.ProviderID)
	}
	if err := m.Delete(first.ProviderID, "uid-1", 0); err != nil {
		t.Errorf("a deletion of what is gone: %v", err)
	}
	if err := m.Delete(next.ProviderID, "uid-1", 0); !errors.Is(err, ErrOther) {
		t.Errorf("id and token of two instances: %v, want ErrOther", err)
	}
	if err := m.Delete(first.ProviderID, "uid-2", 0); !errors.Is(err, ErrOther) {
		t.Errorf("a former id with the successor's token: %v, want ErrOther", err)
	}
	if _, err := m.Get(next.ProviderID, "uid-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of id and token of two instances: %v, want ErrNotFound", err)
	}
	if i, err := m.Get(next.ProviderID, "uid-2"); err != nil || i.State == deleting {
		t.Errorf("the successor is %+v, %v", i, err)
	}
}

func TestAFormerLeaderIsRefusedAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	i := create(t, m, "uid-1", "worker-a", 7)
	stop()
	m, stop = start(t, dir)
	defer stop()
	late := request("uid-2", "worker-b", "uid-2", Spec{})
	late.Fence = 6
	if _, err := m.Create(late); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("creation by a former leader: %v, want ErrFenced", err)
	}
	for _, fence := range []int64{6, 0} {
		if err := m.Delete(i.ProviderID, "uid-1", fence); !errors.Is(err, ledger.ErrFenced) {
			t.Errorf("deletion with fence %d: %v, want ErrFenced", fence, err)
		}
	}
	if now, err := m.Get(i.ProviderID, ""); err != nil || now.State == deleting || now.Fence != 7 {
		t.Errorf("the instance is %+v, %v", now, err)
	}
}

func TestOneUnreadableRecordStopsNothingElse(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	bad := create(t, m, "uid-bad", "bad", 0)
	good := create(t, m, "uid-good", "good", 0)
	stop()
	if err := os.WriteFile(filepath.Join(dir, "machines", "bad", instanceFile), []byte(`{"providerID":`),
		0o600); err != nil {
		t.Fatal(err)
	}
	m, stop = start(t, dir)
	defer stop()
	if i, err := m.Get(good.ProviderID, "uid-good"); err != nil || i.MachineName != "good" {
		t.Errorf("the other instance is %+v, %v", i, err)
	}
	// It cannot be said to be gone, by its id or by its token; another token is not its own.
	for _, q := range [][2]string{{bad.ProviderID, "uid-bad"}, {bad.ProviderID, ""}, {"", "uid-bad"}} {
		if _, err := m.Get(q[0], q[1]); !errors.Is(err, ErrUnsure) {
			t.Errorf("Get(%q, %q) = %v, want ErrUnsure", q[0], q[1], err)
		}
		if err := m.Delete(q[0], q[1], 0); !errors.Is(err, ErrUnsure) {
			t.Errorf("Delete(%q, %q) = %v, want ErrUnsure", q[0], q[1], err)
		}
	}
	if _, err := m.Get("", "uid-of-another"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of another token = %v, want ErrNotFound", err)
	}
	if _, err := m.Create(request("uid-bad", "bad", "uid-bad", Spec{})); !errors.Is(err, ErrUnsure) {
		t.Errorf("its creation again: %v, want ErrUnsure", err)
	}
	if i := create(t, m, "uid-3", "third", 0); i.Address == bad.Address {
		t.Error("its address was given to another instance")
	}
	list, _ := m.List()
	if len(list) != 3 || list[0].ProviderID != bad.ProviderID || list[0].State != failed || list[0].Problem == "" {
		t.Errorf("List = %+v, want it reported", list)
	}
}

// TestRecordsOfAnEarlierVersionAreServed starts with a record that has neither fence nor an id from the token.
func TestRecordsOfAnEarlierVersionAreServed(t *testing.T) {
	dir := t.TempDir()
	machine := filepath.Join(dir, "machines", "worker-a")
	if err := os.MkdirAll(machine, 0o700); err != nil {
		t.Fatal(err)
	}
	record := `{"providerID":"local://test/worker-a","requestToken":"uid-1","machineName":"worker-a","machineUID":"uid-1",
"address":"127.99.1.10","state":"Running","created":"2026-01-01T00:00:00Z","deleted":"0001-01-01T00:00:00Z",
"spec":{"capacity":{"cpu":"many"},"latency":{},"failure":{"boot":"Never"}}}`
	if err := os.WriteFile(filepath.Join(machine, instanceFile), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	m, stop := start(t, dir)
	defer stop()
	if i, err := m.Get("local://test/worker-a", "uid-1"); err != nil || i.State != running {
		t.Fatalf("the instance is %+v, %v", i, err)
	}
	again := create(t, m, "uid-1", "worker-a", 3)
	if again.ProviderID != "local://test/worker-a" {
		t.Errorf("the same request made %+v", again)
	}
	if err := m.Delete("local://test/worker-a", "uid-1", 3); err != nil {
		t.Fatal(err)
	}
	erased(t, m)
	if i := create(t, m, "uid-2", "worker-a", 3); i.ProviderID == "local://test/worker-a" {
		t.Errorf("its successor has its id")
	}
}
