package fleet_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/services/provider-simulated/fleet"
)

func config() fleet.Config {
	return fleet.Config{
		Cluster: "c", Network: netip.MustParsePrefix("100.64.0.0/29"), Seed: 7,
		Create: fleet.Range{Min: time.Second, Max: 3 * time.Second}, Call: fleet.Range{Max: time.Second},
		Faults: fleet.Faults{Fail: 0.2, Lose: 0.1, Hang: 0.1},
	}
}

func order(n int) fleet.Order {
	return fleet.Order{Token: fmt.Sprint("token-", n), Machine: fmt.Sprint("m", n), UID: fmt.Sprint("token-", n)}
}

func TestOneSeedGivesTheSameFatesInAnyOrder(t *testing.T) {
	draw := func(tokens ...string) map[string][]fleet.Fate {
		f, out := fleet.New(config()), map[string][]fleet.Fate{}
		for range 50 {
			for _, token := range tokens {
				out[token] = append(out[token], f.Fate("CreateInstance", token))
			}
		}
		return out
	}
	a, b := draw("x", "y", "z"), draw("z", "x", "y")
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("fates differ (-one order +another):\n%s", diff)
	}
	if cmp.Equal(a["x"], a["y"]) {
		t.Error("two tokens have the same fates")
	}
	count := map[bool]int{}
	for _, fates := range a {
		for _, fate := range fates {
			count[fate.Fail || fate.Lose || fate.Hang]++
			if fate.Delay < 0 || fate.Delay > time.Second || fate.Span < time.Second || fate.Span > 3*time.Second {
				t.Errorf("%+v is outside of the ranges", fate)
			}
		}
	}
	if count[true] < 30 || count[false] < 60 {
		t.Errorf("%d of 150 calls go wrong, want about 60", count[true])
	}
}

func TestNodesAreAbsentOrSilentAsTheSeedSays(t *testing.T) {
	cfg := config()
	cfg.Network = netip.MustParsePrefix("100.64.0.0/16")
	cfg.Absent, cfg.Silent, cfg.Silence = 0.2, 0.3, fleet.Range{Min: time.Minute, Max: 2 * time.Minute}
	a, b := fleet.New(cfg), fleet.New(cfg)
	count := map[string]int{}
	for n := range 200 {
		first, err := a.Create(order(n), 0)
		if err != nil {
			t.Fatal(err)
		}
		second, err := b.Create(order(n), 0)
		if err != nil {
			t.Fatal(err)
		}
		o, fate, ok := a.Node(first.GetProviderId())
		if _, again, _ := b.Node(second.GetProviderId()); !ok || o.Token != order(n).Token || fate != again {
			t.Errorf("token %d: %v and %v from one seed", n, fate, again)
		}
		switch {
		case fate.Absent && fate.Silent, fate.Silent && (fate.After < time.Minute || fate.After > 2*time.Minute):
			t.Errorf("token %d: %v", n, fate)
		case fate.Absent:
			count["absent"]++
		case fate.Silent:
			count["silent"]++
		}
	}
	if count["absent"] < 20 || count["silent"] < 30 || count["absent"]+count["silent"] > 150 {
		t.Errorf("%v of 200", count)
	}
	if _, _, ok := a.Node("simulated://other/x"); ok {
		t.Error("an unknown instance has a node")
	}
}

// running runs f inside a bubble of synctest, with time passing for the fleet.
func running(t *testing.T, test func(t *testing.T, f *fleet.Fleet)) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(config())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := f.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		test(t, f)
		cancel()
		<-done
	})
}

func TestAnInstanceRunsAndGoesInItsTime(t *testing.T) {
	running(t, func(t *testing.T, f *fleet.Fleet) {
		w := f.Watch()
		defer w.Close()
		i, err := f.Create(order(1), 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		state := func() string {
			synctest.Wait()
			now, err := f.Get(i.GetProviderId(), "token-1")
			if err != nil {
				return err.Error()
			}
			return now.GetState()
		}
		var saw []string
		look := func() {
			saw = append(saw, state())
			for _, c := range w.Next() {
				saw = append(saw, fmt.Sprintf("watch: %s deleted=%t", c.GetInstance().GetState(), c.GetDeleted()))
			}
		}
		look()
		time.Sleep(2 * time.Second)
		look()
		remove(t, f, "token-1", time.Second)
		look()
		time.Sleep(time.Second)
		look()
		want := []string{
			"Creating", "watch: Creating deleted=false", "Running", "watch: Running deleted=false",
			"Deleting", "watch: Deleting deleted=false", "no such instance", "watch: Deleting deleted=true",
		}
		if diff := cmp.Diff(want, saw); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestAddressesAreForOneInstanceAtATime(t *testing.T) {
	running(t, func(t *testing.T, f *fleet.Fleet) {
		seen := map[string]bool{}
		for n := range 7 { // a /29 has 8 addresses, and the first is none of an instance
			i, err := f.Create(order(n), 0)
			if err != nil {
				t.Fatal(err)
			}
			address := i.GetAddresses()[0].GetAddress()
			if seen[address] || address == "100.64.0.0" {
				t.Errorf("address %s of instance %d", address, n)
			}
			seen[address] = true
		}
		if _, err := f.Create(order(7), 0); err != fleet.ErrFull {
			t.Errorf("one too many: %v, want %v", err, fleet.ErrFull)
		}
		remove(t, f, "token-3", 0)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if i, err := f.Create(order(8), 0); err != nil || !seen[i.GetAddresses()[0].GetAddress()] {
			t.Errorf("after one went: %v, %v", i, err)
		}
		if _, err := f.Create(order(3), 0); err != fleet.ErrUsed {
			t.Errorf("the token of the one that went: %v, want %v", err, fleet.ErrUsed)
		}
	})
}

func remove(t *testing.T, f *fleet.Fleet, token string, span time.Duration) {
	t.Helper()
	if _, err := f.Delete("", token, 0, span); err != nil {
		t.Error(err)
	}
}

func TestVolumesAreDetachedAfterTheirTimeUnlessTheyAreStuck(t *testing.T) {
	for name, tt := range map[string]struct {
		stuck       float64
		early, late int // volumes that are attached a moment before, and after, the detach time
	}{
		"all are detached":         {0, 3, 0},
		"stuck ones stay attached": {1, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config()
				cfg.Detach, cfg.Stuck = fleet.Range{Min: time.Minute, Max: time.Minute}, tt.stuck
				f := fleet.New(cfg)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- f.Run(ctx) }()
				o := order(1)
				o.Volumes = 3
				i, err := f.Create(o, time.Second)
				if err != nil {
					t.Fatal(err)
				}
				attached := func() int {
					now, err := f.Get(i.GetProviderId(), "")
					if err != nil || !now.GetVolumesKnown() {
						t.Fatalf("instance %v, error %v", now, err)
					}
					return len(now.GetVolumes())
				}
				time.Sleep(60 * time.Second)
				early := attached()
				time.Sleep(2 * time.Second)
				if late := attached(); early != tt.early || late != tt.late {
					t.Errorf("%d, then %d volumes are attached, want %d, then %d", early, late, tt.early, tt.late)
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
