package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// run runs a set, as a new process of machine-api would, until stop is called or the test ends.
func run(t *testing.T, st *store.Store, chosen map[string]string, plugins map[string]*plugin) (s *Set, stop func()) {
	t.Helper()
	conns := map[string]grpc.ClientConnInterface{}
	for name, p := range plugins {
		conns[name] = serve(t, p)
	}
	s = New(conns, Claims(st, chosen), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = s.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(stop)
	return s, stop
}

// serves waits until a provider is in force for the kind of the tests.
func serves(t *testing.T, s *Set, name string) {
	t.Helper()
	eventually(t, func() bool {
		p, err := s.For(machine("a").GetSpec().GetProviderSpec().GetValue())
		return err == nil && p.Name == name
	})
}

// After a restart the other provider answers first. It is refused until it is chosen, and stays in force then.
func TestTheProviderInForceIsTheSameAfterARestart(t *testing.T) {
	st := etcdtest.Store(t)
	spec := machine("a").GetSpec().GetProviderSpec().GetValue()
	s, stop := run(t, st, nil, map[string]*plugin{"provider-one": {}, "provider-two": {away: true}})
	serves(t, s, "provider-one")
	stop()

	one := &plugin{away: true}
	s, stop = run(t, st, nil, map[string]*plugin{"provider-one": one, "provider-two": {}})
	eventually(t, func() bool { return s.isContested("TestSpec") })
	if p, err := s.For(spec); !errors.Is(err, errSilent) {
		t.Errorf("For = %v, %v while the provider in force is silent, want errSilent", p, err)
	}
	const why = "provider-two is not in force for kind TestSpec, which provider-one serves; " +
		"to change that, start machine-api with --provider-for TestSpec=provider-two"
	if f := s.Fault(); !strings.Contains(f, why) {
		t.Errorf("the fault is %q, want %q", f, why)
	}
	one.set(func() { one.away = false })
	serves(t, s, "provider-one")
	stop()

	// Without a connection to it, nothing is asked of the other one either.
	s, stop = run(t, st, nil, map[string]*plugin{"provider-two": {}})
	eventually(t, func() bool { return s.isContested("TestSpec") })
	if p, err := s.For(spec); !errors.Is(err, errNotConnected) || !strings.Contains(fmt.Sprint(err), "provider-one") {
		t.Errorf("For = %v, %v; want errNotConnected with the provider that is in force", p, err)
	}
	stop()

	chosen := map[string]string{"TestSpec": "provider-two"}
	s, stop = run(t, st, chosen, map[string]*plugin{"provider-one": {}, "provider-two": {}})
	serves(t, s, "provider-two")
	eventually(t, func() bool {
		return strings.Contains(s.Fault(), "provider-one is not in force for kind TestSpec, which provider-two serves")
	})
	stop()
	s, _ = run(t, st, nil, map[string]*plugin{"provider-one": {}, "provider-two": {away: true}})
	eventually(t, func() bool { return s.isContested("TestSpec") })
	if p, err := s.For(spec); !errors.Is(err, errSilent) {
		t.Errorf("For = %v, %v; want that the chosen provider is waited for", p, err)
	}
}

// A provider that is chosen before it has ever answered leaves the kind to no other.
func TestAChosenProviderIsWaitedFor(t *testing.T) {
	two := &plugin{away: true}
	s, _ := run(t, etcdtest.Store(t), map[string]string{"TestSpec": "provider-two"},
		map[string]*plugin{"provider-one": {}, "provider-two": two})
	eventually(t, func() bool { return s.isContested("TestSpec") })
	if p, err := s.For(machine("a").GetSpec().GetProviderSpec().GetValue()); !errors.Is(err, errSilent) {
		t.Errorf("For = %v, %v; want errSilent", p, err)
	}
	two.set(func() { two.away = false })
	serves(t, s, "provider-two")
}

// Processes that start together claim a kind for different providers.
func TestOneOfManyClaimsWins(t *testing.T) {
	st := etcdtest.Store(t)
	const claims = 20
	got := make([]string, claims)
	var group sync.WaitGroup
	for i := range claims {
		group.Go(func() {
			var err error
			if got[i], err = Claims(st, nil)(t.Context(), "TestSpec", fmt.Sprintf("provider-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, name := range got {
		if name == "" || name != got[0] {
			t.Fatalf("the claims were won by %q", got)
		}
	}
}

// A process that does not lead yet has seen another provider in force than the leader before it put there.
func TestALeaderClaimsAgain(t *testing.T) {
	st := etcdtest.Store(t)
	plugins := map[string]*plugin{"provider-one": {}, "provider-two": {away: true}}
	s, _ := run(t, st, nil, plugins)
	serves(t, s, "provider-one")
	if _, err := Claims(st, map[string]string{"TestSpec": "provider-two"})(t.Context(), "TestSpec",
		"provider-two"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { _ = s.Lead(ctx, nil) })
	eventually(t, func() bool { return s.isContested("TestSpec") })
}
