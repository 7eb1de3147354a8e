package pki

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

func TestNodesAreSpreadOverTheGateways(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	list := []string{"127.20.3.1:6443", "127.20.3.2:6443", "127.20.3.3:6443"}
	first := map[string]int{}
	for i := range 300 {
		s := NewStore(t.TempDir(), []string{"127.20.3.3:6443", "127.20.3.9:6443"}, "")
		if err := s.save(&machinev1.JoinResponse{NodeName: fmt.Sprintf("worker-%d", i), Gateways: list}, log); err != nil {
			t.Fatal(err)
		}
		got, err := s.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		first[got[0]]++
		again, err := s.Endpoints()
		if err != nil || !slices.Equal(again, got) {
			t.Fatalf("%q, then %q, %v", got, again, err)
		}
		if got[3] != "127.20.3.9:6443" || len(got) != 4 {
			t.Fatalf("%q: want the bootstrap file's own last", got)
		}
	}
	for _, e := range list {
		if n := first[e]; n < 50 || n > 150 {
			t.Errorf("of 300 nodes %v prefer each gateway", first)
		}
	}
}

func TestGatewaysThatCannotBeUsedAreIgnored(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := NewStore(t.TempDir(), []string{"127.20.3.9:6443"}, "")
	many := make([]string, maxGateways+1)
	for i := range many {
		many[i] = fmt.Sprintf("127.20.4.%d:6443", i)
	}
	check := func(given []string, want ...string) {
		t.Helper()
		if err := s.save(&machinev1.JoinResponse{NodeName: "a", Gateways: given}, log); err != nil {
			t.Fatal(err)
		}
		got, err := s.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %q (-want +got):\n%s", given, diff)
		}
	}
	check([]string{"127.0.0.1"}, "127.20.3.9:6443")
	check(nil, "127.20.3.9:6443")
	check([]string{"127.20.3.1:6443", "127.20.3.1:6443"}, "127.20.3.1:6443", "127.20.3.9:6443")
	for _, bad := range [][]string{nil, {""}, {":6443"}, {"127.0.0.1:"}, {"127.20.3.2:6443", "a b"}, many} {
		check(bad, "127.20.3.1:6443", "127.20.3.9:6443")
	}
	check([]string{"[fd00::1]:6443"}, "[fd00::1]:6443", "127.20.3.9:6443")
}

func TestGatewaysThatAreKnownNowComeFirst(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	file := filepath.Join(t.TempDir(), "gateways")
	s := NewStore(t.TempDir(), []string{"127.20.3.9:6443"}, file)
	if err := s.save(&machinev1.JoinResponse{NodeName: "a", Gateways: []string{"127.20.3.1:6443"}}, log); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string // "-": there is none
		want []string
	}{
		{"-", []string{"127.20.3.1:6443", "127.20.3.9:6443"}},
		{"", []string{"127.20.3.1:6443", "127.20.3.9:6443"}},
		{"127.20.3.2:6443\n127.20.3.1:6443\n127.20.3.3:6443\n", append(ordered("a", []string{
			"127.20.3.1:6443", "127.20.3.2:6443", "127.20.3.3:6443",
		}), "127.20.3.9:6443")},
		{"127.20.3.2:6443\n127.0.0.1\n", []string{"127.20.3.1:6443", "127.20.3.9:6443"}},
	} {
		if c.file != "-" {
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("file %q (-want +got):\n%s", c.file, diff)
		}
	}
}
