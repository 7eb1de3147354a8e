package hostconfig

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/process"
)

// hostOn is a machine on a directory, that has been opened.
func hostOn(t *testing.T, dir string) (*Host, error) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	h := New(Config{
		Dir: dir, BootID: "boot-1", Log: log, Supervisor: process.NewSupervisor(filepath.Join(t.TempDir(), "run"), log),
	})
	return h, h.open()
}

// TestFaultsALossOfPowerLeavesAWholeConfiguration applies configurations on a disk of which only what was synced
// survives, in part or wholly also what was not. After a loss at any operation, the next start finds one configuration
// and exactly its files: at least the one whose application was reported as done, and not one that was taken back.
func TestFaultsALossOfPowerLeavesAWholeConfiguration(t *testing.T) {
	seeds := uint64(1)
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		seeds = 20
	}
	configs := map[string]*configv1.MachineConfig{
		"a": config(t, "a", []any{
			fileAt("/etc/one", "1a", 0o644), fileAt("/etc/two", "2a", 0o600), fileAt("/only/a/deep", "x", 0o644),
		}, nil),
		"b": config(t, "b", []any{
			fileAt("/etc/one", "1b", 0o640), fileAt("/etc/two", "2b", 0o600), fileAt("/only/b/deep", "y", 0o644),
		}, []any{map[string]any{"name": "off.service", "contents": "[Service]\nExecStart=/bin/true\n"}}),
		"c": config(t, "c", nil, nil),
	}
	for seed := range seeds {
		losses := lossesOf(t, seed, configs)
		for _, l := range losses {
			checkLoss(t, l, configs["c"])
		}
		if len(losses) < 100 {
			t.Errorf("only %d losses were tried", len(losses))
		}
		t.Logf("%d losses", len(losses))
	}
}

// lossesOf applies configurations and returns what losses in between leave. The mark of each names what the next start
// may have.
func lossesOf(t *testing.T, seed uint64, configs map[string]*configv1.MachineConfig) []loss {
	t.Helper()
	dir := t.TempDir()
	d := newDisk(t, dir, seed)
	d.more = 3
	if err := os.MkdirAll(filepath.Join(dir, rootDir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, rootDir, "etc/two"), []byte("before everything"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.syncAll()
	h, err := hostOn(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		mark, config string
		fails        bool
	}{{"none a", "a", false}, {"a", "b", true}, {"a b", "b", false}, {"b c", "c", false}} {
		h.tree.step = func(what string) error {
			if step.fails && what == "record" {
				return errors.New("a disk error")
			}
			return nil
		}
		d.begin(step.mark)
		st, _, err := h.apply(t.Context(), h.st, order{config: configs[step.config]})
		if (err != nil) != step.fails {
			t.Fatal(err)
		}
		h.st = st
	}
	d.begin("")
	h.tree.root.Close()
	return d.losses
}

// checkLoss starts on what a loss left.
func checkLoss(t *testing.T, l loss, empty *configv1.MachineConfig) {
	t.Helper()
	when := fmt.Sprintf("after %q, where it may have %s", l.after, l.mark)
	left, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, left)
	h, err := hostOn(t, left)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer func() {
		h.tree.root.Close()
		_ = os.RemoveAll(left)
	}()
	has := cmp.Or(h.st.Name, "none")
	if !slices.Contains(strings.Fields(l.mark), has) {
		t.Fatalf("%s: it has %s", when, has)
	}
	if list := h.tree.drift(h.wanted.entries, h.seen); len(list) > 0 {
		t.Fatalf("%s: it has %s: %v", when, has, list)
	}
	for _, name := range []string{"a", "b"} {
		_, err := os.Stat(filepath.Join(left, rootDir, "only", name, "deep"))
		if there := !errors.Is(err, os.ErrNotExist); there != (has == name) {
			t.Fatalf("%s: it has %s, and /only/%s is there: %v", when, has, name, there)
		}
	}
	if _, err := os.Stat(filepath.Join(left, journalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%s: a journal is there: %v", when, err)
	}
	if _, _, err := h.apply(t.Context(), h.st, order{config: empty}); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if two, err := os.ReadFile(filepath.Join(left, rootDir, "etc/two")); err != nil || string(two) != "before everything" {
		t.Fatalf("%s: the original is %q, %v", when, two, err)
	}
}
