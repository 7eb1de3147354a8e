package machine

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestAMachineHasWhatItsProviderSaysAndElseWhatItsHostHas(t *testing.T) {
	b := Bootstrap{Capacity: map[string]any{"cpu": "3", "ephemeral-storage": "10Gi"}}
	s, err := b.Status("n", "127.0.0.1", Boot{ID: "b"}, "")
	if err != nil {
		t.Fatal(err)
	}
	c := s.GetCapacity()
	if c["cpu"].GetStringValue() != "3" || c["ephemeral-storage"].GetStringValue() != "10Gi" ||
		c["pods"].GetStringValue() != "110" || c["memory"].GetStringValue() == "" {
		t.Errorf("capacity %v", c)
	}
	if len(s.GetAllocatable()) != len(c) {
		t.Errorf("allocatable %v", s.GetAllocatable())
	}
}

// The file is from an image: it may hold anything.
func TestTheNameOfAnOperatingSystem(t *testing.T) {
	for content, want := range map[string]string{
		"PRETTY_NAME=\"Example OS 1\"\n":                         "Example OS 1",
		"NAME=x\n":                                               runtime.GOOS,
		"PRETTY_NAME=caf\xe9\x1b[2J\u202e!\n":                    "caf[2J!",
		"PRETTY_NAME=" + strings.Repeat("a", 1000) + "\n":        strings.Repeat("a", maxOSImage),
		strings.Repeat("#\n", maxRelease) + "PRETTY_NAME=late\n": runtime.GOOS,
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "usr/lib"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "usr/lib/os-release"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := osImage(dir); got != want {
			t.Errorf("%.60q is named %q, want %q", content, got, want)
		}
	}
}
