package command_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs each script of testdata/script in a world of its own. "exec windlass" in them is this very program.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	check(t, err)
	if len(scripts) == 0 {
		t.Fatal("there are no scripts")
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			w := newWorld(t)
			testscript.Run(t, testscript.Params{
				Files: []string{script},
				Setup: func(e *testscript.Env) error {
					for name, value := range w.env("admin") {
						e.Setenv(name, value)
					}
					e.Setenv("GUEST_CERT", filepath.Join(w.dir, "guest.crt"))
					e.Setenv("GUEST_KEY", filepath.Join(w.dir, "guest.key"))
					return nil
				},
			})
		})
	}
}
