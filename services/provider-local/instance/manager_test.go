package instance

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/process"
)

// TestMain makes the test binary the executable of the node-agent: it lives until it is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "serve" && os.Args[2] == "node-agent" {
		if _, err := os.Stat(filepath.Join(os.Args[4], bootstrapFile)); err != nil {
			os.Exit(1)
		}
		time.Sleep(time.Hour) // until it is killed
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string) (*Manager, func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Dir: dir, Cluster: "test", Subnet: netip.MustParseAddr("127.99.1.0"), Windlass: exe,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return m, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func request(token, machine, uid string, spec Spec) Request {
	return Request{Token: token, Machine: machine, UID: uid, Spec: spec}
}

// wait waits until the instances are as ok says.
func wait(t *testing.T, m *Manager, ok func([]*Instance) bool) []*Instance {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		list, changed := m.List()
		if ok(list) {
			return list
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("instances stay %+v", list)
		}
	}
}

// agent waits until an instance's agent runs and returns its pid.
func agent(t *testing.T, dir, name string) int {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		found, err := process.Running(filepath.Join(dir, "run"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Name == name {
				return f.PID
			}
		}
		time.Sleep(5 * time.Millisecond) // until the condition holds
	}
	t.Fatalf("the agent of %s does not run", name)
	return 0
}

func TestAnInstanceIsMadeOnceStartedAndErased(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	defer func() { stop() }()
	one, err := m.Create(request("token-1", "worker-a", "uid-1", Spec{Zone: "rack-a"}))
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Create(request("token-1", "worker-a", "uid-1", Spec{Zone: "rack-b"}))
	if err != nil || again.Address != one.Address || again.Spec.Zone != "rack-a" {
		t.Fatalf("the same request again = %+v, %v; want the same instance", again, err)
	}
	if _, err := m.Create(request("token-2", "worker-a", "uid-2", Spec{})); !errors.Is(err, ErrTaken) {
		t.Fatalf("another request for the name: %v, want ErrTaken", err)
	}
	wait(t, m, func(l []*Instance) bool { return len(l) == 1 && l[0].State == running })
	pid := agent(t, dir, "worker-a")

	stop() // the provider ends, the machine runs on and is taken over
	m, stop = start(t, dir)
	wait(t, m, func(l []*Instance) bool { return len(l) == 1 && l[0].State == running })
	if now := agent(t, dir, "worker-a"); now != pid {
		t.Errorf("agent has pid %d after the provider's restart, want %d", now, pid)
	}
	two, err := m.Create(request("token-3", "worker-b", "uid-3", Spec{}))
	if err != nil || two.Address == one.Address {
		t.Fatalf("second instance = %+v, %v; want another address", two, err)
	}
	for range 2 { // asked twice, it is deleted once
		if err := m.Delete(one.ProviderID, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, m, func(l []*Instance) bool { return len(l) == 1 && l[0].MachineName == "worker-b" })
	if left, err := filepath.Glob(filepath.Join(dir, "machines", "worker-a", "*")); len(left) > 0 || err != nil {
		t.Errorf("the directory of the deleted instance holds %v, %v; want that it is gone", left, err)
	}
	if err := m.Delete("local://test/nothing", "", 0); err != nil {
		t.Errorf("deletion of nothing: %v", err)
	}
	if err := m.Delete(two.ProviderID, "", 0); err != nil {
		t.Fatal(err)
	}
	wait(t, m, func(l []*Instance) bool { return len(l) == 0 })
}

// A provider was killed after it removed the record of an instance and before it removed the rest.
func TestWhatIsLeftOfAnErasedInstanceIsRemoved(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "machines", "gone", "tls", "tls.key")
	if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m, stop := start(t, dir)
	defer stop()
	if list, _ := m.List(); len(list) > 0 {
		t.Errorf("instances: %+v", list)
	}
	if _, err := os.Stat(filepath.Join(dir, "machines", "gone")); !os.IsNotExist(err) {
		t.Errorf("the key of the erased instance is left: %v", err)
	}
}

func TestAnInstanceFailsAsItsSpecAsks(t *testing.T) {
	m, stop := start(t, t.TempDir())
	defer stop()
	spec := Spec{Failure: Failure{Create: "Transient", Boot: "Never"}}
	if _, err := m.Create(request("t", "a", "u", spec)); !errors.Is(err, ErrBusy) {
		t.Errorf("first call: %v, want ErrBusy", err)
	}
	if _, err := m.Create(request("t", "a", "u", spec)); err != nil {
		t.Errorf("second call: %v", err)
	}
	if _, err := m.Create(request("t2", "b", "u2", Spec{Failure: Failure{Create: "Quota"}})); !errors.Is(err,
		ErrQuota) {
		t.Errorf("over quota: %v, want ErrQuota", err)
	}
	wait(t, m, func(l []*Instance) bool { return len(l) == 1 && l[0].State == running })
	if err := m.Delete("", "t", 0); err != nil {
		t.Fatal(err)
	}
	wait(t, m, func(l []*Instance) bool { return len(l) == 0 })
}

func TestASpecNamesAllItsWrongFields(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{
		"apiVersion": SpecAPIVersion, "kind": "AWSMachineProviderConfig", "zome": "a", "instanceType": 3,
		"latency": map[string]any{"create": "soon"}, "failure": map[string]any{"boot": "Sometimes"},
		"capacity": map[string]any{"cpu": true, "memory": "many", "pods": -1, "disk": "1Gi", "gpu": "1e2147483647"},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ParseSpec(s, []string{ProcessRuntime})
	want := map[string]bool{
		"kind": true, "zome": true, "instanceType": true, "latency.create": true, "failure.boot": true,
		"capacity.cpu": true, "capacity.memory": true, "capacity.pods": true, "capacity.gpu": true,
	}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var f FieldError
		if !errors.As(e, &f) || !want[f.Path] {
			t.Errorf("unexpected: %v", e)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 {
		t.Errorf("not named: %v", want)
	}
}
