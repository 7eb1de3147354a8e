// Package compose brings compose.yaml up, each program in a container of its own, and tells on it what of the tour can be told of a cluster elsewhere.
package compose

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	tourSteps      = "1,2,6,8" // look, replace a control-plane machine, place, taint and evict
	tourPatience   = 6 * time.Minute
	healthPatience = time.Minute
	callPatience   = 10 * time.Second
)

func TestTheTourIsToldOfAClusterInContainers(t *testing.T) {
	s := newStack(t)
	t.Logf("container test: runs, with image %s", s.settings["WINDLASS_IMAGE"])
	began := time.Now()
	told := s.up()
	t.Logf("up after %.0f s:\n%s", time.Since(began).Seconds(), told)
	s.tour(tourSteps)
	s.healthy(healthPatience)

	before := s.windlass("get", "machines", "-o", "name")
	s.down()
	s.load()
	s.up()
	if after := s.windlass("get", "machines", "-o", "name"); after != before {
		t.Errorf("down and up brought another cluster back:\n%sinstead of\n%s", after, before)
	}
	t.Logf("container test: done after %.0f s", time.Since(began).Seconds())
}

// tour tells steps of the tour on the stack.
func (s *stack) tour(steps string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tourPatience)
	defer cancel()
	program := filepath.Join(s.TempDir(), "tour")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", program, "./e2e/tour")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	ca, cert, key := s.admin()
	cmd := exec.CommandContext(ctx, program, "--steps", steps, "--server", s.server(), "--cacert", ca, "--cert", cert, "--key", key)
	out, err := cmd.CombinedOutput()
	s.Logf("%s", out)
	if err != nil {
		s.Fatal(err)
	}
}

// windlass runs a command on the stack's cluster and returns what it printed.
func (s *stack) windlass(args ...string) string {
	s.Helper()
	program, err := harness.Binary()
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	ca, cert, key := s.admin()
	var out, complaint strings.Builder
	cmd := exec.CommandContext(ctx, program, append([]string{"--server", s.server(), "--cacert", ca, "--cert", cert, "--key", key}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		s.Fatalf("windlass %s: %v\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String()
}
