package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestABootEndsWithTheHostOrTheFirstProcess(t *testing.T) {
	dir := t.TempDir()
	load := func(host, first string) string {
		t.Helper()
		b, err := loadBoot(dir, host, first)
		if err != nil || b.ID == "" {
			t.Fatalf("boot %+v, %v", b, err)
		}
		return b.ID
	}
	one := load("host-1", "10")
	if again := load("host-1", "10"); again != one {
		t.Error("a restart of the agent is another boot")
	}
	two := load("host-1", "20")
	if two == one {
		t.Error("a start of the container is no other boot")
	}
	if three := load("host-2", "20"); three == two {
		t.Error("a boot of the host is no other boot")
	}
}

func TestTheBootOfAnEarlierAgentGoesOn(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bootFile), []byte(`{"id":"a","host":"host-1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := loadBoot(dir, "host-1", "10"); err != nil || b.ID != "a" {
		t.Errorf("boot %+v, %v", b, err)
	}
	if b, err := loadBoot(dir, "host-1", "20"); err != nil || b.ID == "a" {
		t.Errorf("after a start of the container, boot %+v, %v", b, err)
	}
}

func TestTheFirstProcessHasAStartTime(t *testing.T) {
	line := "1 (a (b) c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 " + strings.Repeat("0 ", 20)
	if got := startTime(line); got != "4711" {
		t.Errorf("start time %q", got)
	}
	if got := startTime(""); got != "" {
		t.Errorf("without a line: %q", got)
	}
}
