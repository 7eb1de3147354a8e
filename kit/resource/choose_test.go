package resource_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// firstFree returns a Choose that gives a set without a color the first that no set of the table has. n is how many
// there are; calls counts the choices.
func firstFree(table **resource.Table[*machinev1.MachineSet], n int, calls *atomic.Int32) func(*machinev1.MachineSet) (
	bool, error,
) {
	return func(s *machinev1.MachineSet) (bool, error) {
		if s.GetMetadata().GetLabels()["color"] != "" {
			return false, nil
		}
		calls.Add(1)
		taken := map[string]bool{}
		for o := range (*table).Objects() {
			taken[o.GetMetadata().GetLabels()["color"]] = true
		}
		for i := range n {
			if c := fmt.Sprintf("c-%d", i); !taken[c] {
				if s.Metadata.Labels == nil {
					s.Metadata.Labels = map[string]string{}
				}
				s.Metadata.Labels["color"] = c
				return true, nil
			}
		}
		return false, rpcerr.Forbidden("all colors are taken")
	}
}

// choosing serves sets that claim their color, of which there are n.
func choosing(t *testing.T, n int) (fixture, *atomic.Int32) {
	var table *resource.Table[*machinev1.MachineSet]
	calls := &atomic.Int32{}
	f := serve(t, resource.Config[*machinev1.MachineSet]{Claims: byColor, Choose: firstFree(&table, n, calls)})
	table = f.table
	return f, calls
}

func TestConcurrentCreatorsDoNotGetTheValueThatBothChose(t *testing.T) {
	const rivals, rounds = 6, 5
	f, calls := choosing(t, rivals*rounds)
	for round := range rounds {
		errs := make([]error, rivals)
		var group sync.WaitGroup
		for i := range rivals {
			group.Go(func() {
				s := set(fmt.Sprintf("s-%d-%d", round, i), 1)
				if i%2 == 0 {
					_, errs[i] = f.table.Create(t.Context(), s)
				} else {
					errs[i] = f.table.CreateAll(t.Context(), []*machinev1.MachineSet{s})[0].Err
				}
			})
		}
		group.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("round %d: set %d: %v", round, i, err)
			}
		}
	}
	has := map[string]bool{}
	for o := range f.table.Objects() {
		has[o.GetMetadata().GetLabels()["color"]] = true
	}
	if len(has) != rivals*rounds || calls.Load() <= rivals*rounds {
		t.Errorf("%d sets have %d colors after %d choices, want one each and choices that were repeated", rivals*rounds,
			len(has), calls.Load())
	}
}

func TestNothingIsChosenForAnObjectThatHasItsValue(t *testing.T) {
	f, calls := choosing(t, 2)
	if _, err := f.table.Create(t.Context(), colored("one", "a", "c-0")); err != nil {
		t.Fatal(err)
	}
	_, err := f.table.Create(t.Context(), colored("one", "b", "c-0"))
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS || calls.Load() != 0 {
		t.Errorf("a value that the caller gave and another set has: %v, after %d choices", err, calls.Load())
	}
	dry, err := f.table.Create(t.Context(), set("c", 1), resource.WriteOptions{DryRun: true})
	if err != nil || dry.GetMetadata().GetLabels()["color"] != "c-1" {
		t.Errorf("a dry run: %v, %v", dry, err)
	}
	if _, err := f.table.Create(t.Context(), set("c", 1)); err != nil {
		t.Error(err)
	}
	if _, err := f.table.Create(t.Context(), set("d", 1)); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("all values are taken: %v, want the error of Choose", err)
	}
}

func TestAChangeOfAnObjectWithoutAValueChoosesOne(t *testing.T) {
	f, _ := choosing(t, 1)
	f.create(t, set("a", 1))
	change := func(color string) (*machinev1.MachineSet, error) {
		return f.table.Modify(t.Context(), object.Key{Namespace: ns, Name: "a"}, func(s *machinev1.MachineSet) error {
			s.Metadata.Labels = map[string]string{"color": color}
			return nil
		})
	}
	if _, err := change("red"); err != nil {
		t.Fatal(err)
	}
	out, err := change("")
	if err != nil || out.GetMetadata().GetLabels()["color"] != "c-0" {
		t.Errorf("changed to %v, %v, want the free value", out, err)
	}
}
