// Package compose brings compose.yaml up, each program in a container of its own, and runs the steps of the tour
// that need no processes of the same host.
package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"
	multiplexed "github.com/testcontainers/testcontainers-go/exec"

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
	printed := s.up()
	t.Logf("up after %.0f s:\n%s", time.Since(began).Seconds(), printed)
	s.tour(tourSteps)
	s.podsHaveUsers()
	s.healthy(healthPatience)

	t.Logf("container test: done after %.0f s", time.Since(began).Seconds())
}

// TestFaultsAStackGoesDownAndUp replaces the three authorities of a stack. Then it takes the stack down and brings it
// back, twice, or five times in a row with $WINDLASS_FAULTS=all: its objects and its quorum must be the same ones each
// time. Then it kills programs, as a crash does, and the engine must start them again.
func TestFaultsAStackGoesDownAndUp(t *testing.T) {
	s := newStack(t)
	s.up()
	want := s.objects()
	s.rotate("api")
	s.rotate("etcd-client")
	s.rotate("etcd-peer")
	if diff := cmp.Diff(want, s.objects()); diff != "" {
		t.Errorf("the rotations brought other objects (-before +after):\n%s", diff)
	}
	rounds := 2
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		rounds = 5
	}
	for round := range rounds {
		began := time.Now()
		s.down()
		down := time.Since(began)
		s.load()
		s.up()
		s.awaitVoters(3)
		t.Logf("round %d: down %.1f s, up %.1f s", round+1, down.Seconds(), (time.Since(began) - down).Seconds())
		if diff := cmp.Diff(want, s.objects()); diff != "" {
			t.Fatalf("round %d brought other objects back (-before +after):\n%s", round+1, diff)
		}
	}
	for _, service := range []string{"gateway", "provider-local"} {
		s.crash(service)
	}
	s.healthy(healthPatience)
	s.awaitVoters(3)
	if diff := cmp.Diff(want, s.objects()); diff != "" {
		t.Errorf("the crashes brought other objects back (-before +after):\n%s", diff)
	}
}

// podsHaveUsers fails the test unless each pod runs as a user of its own.
func (s *stack) podsHaveUsers() {
	s.Helper()
	top, err := s.engine.Client().ContainerTop(context.Background(), s.container("provider-local").GetContainerID(),
		client.ContainerTopOptions{
			Arguments: []string{"-eo", "pid,uid,args"},
		})
	if err != nil {
		s.Fatal(err)
	}
	pods := map[string]string{}
	for _, p := range top.Processes {
		if strings.Contains(p[2], "hello-pod") && !strings.Contains(p[2], "container-shim") { // which starts it
			if uid := p[1]; uid == "0" || pods[uid] != "" {
				s.Errorf("a pod runs as user %s: %s", uid, p[2])
			}
			pods[p[1]] = p[2]
		}
	}
	if len(pods) == 0 {
		s.Errorf("no pod among %v", top.Processes)
	}
}

// objects returns the uids of what a stack begins with, by kind and name.
func (s *stack) objects() map[string]string {
	s.Helper()
	out := map[string]string{}
	for _, kind := range []string{"machines", "machinesets", "controlplanemachinesets", "nodes", "pods"} {
		var list struct {
			Items []struct{ Metadata struct{ Name, UID string } }
		}
		if err := json.Unmarshal([]byte(s.windlass("get", kind, "-o", "json")), &list); err != nil {
			s.Fatal(err)
		}
		for _, i := range list.Items {
			out[kind+"/"+i.Metadata.Name] = i.Metadata.UID
		}
	}
	if len(out) == 0 {
		s.Fatal("the stack has no objects")
	}
	return out
}

// rotate replaces an authority by the commands of docs/compose.md, and returns when nothing trusts the former one.
func (s *stack) rotate(authority string) {
	s.Helper()
	began := time.Now()
	before := s.exec("/windlass", "container", "rotate", "--status")
	s.exec("/windlass", "container", "rotate", authority)
	s.exec("/windlass", "container", "rotate", authority, "--finish") // of etcd's authorities the first has done it
	after := s.exec("/windlass", "container", "rotate", "--status")
	if before == after || strings.Count(after, "steady") != 3 {
		s.Fatalf("the authorities were\n%sand are after the rotation of %s\n%s", before, authority, after)
	}
	s.Logf("%s rotated in %.1f s", authority, time.Since(began).Seconds())
}

// exec runs a command in the container of the certificates and returns what it printed.
func (s *stack) exec(command ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), upPatience)
	defer cancel()
	code, out, err := s.container("certificates").Exec(ctx, command, multiplexed.Multiplexed())
	if err != nil {
		s.Fatalf("%s: %v", strings.Join(command, " "), err)
	}
	text, err := io.ReadAll(out)
	if err != nil || code != 0 {
		s.Fatalf("%s: exit code %d, %v\n%s", strings.Join(command, " "), code, err, text)
	}
	return string(text)
}

// awaitVoters waits until that many members of etcd vote and are healthy.
func (s *stack) awaitVoters(want int) {
	s.Helper()
	said := ""
	for end := time.Now().Add(healthPatience); time.Now().Before(end); time.Sleep(lookEvery) {
		if said = s.windlass("quorum"); strings.Contains(said, fmt.Sprintf("%d of %d healthy", want, want)) {
			return
		}
	}
	s.Fatalf("not %d healthy voters after %s:\n%s", want, healthPatience, said)
}

// tour runs steps of the tour on the stack.
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
	cmd := exec.CommandContext(ctx, program, "--steps", steps, "--server", s.server(), "--cacert", ca, "--cert", cert,
		"--key", key)
	out, err := cmd.CombinedOutput()
	s.Logf("%s", out)
	if err != nil {
		const most = 1000
		s.Fatalf("the tour: %v: …%s", err, out[max(0, len(out)-most):])
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
	cmd := exec.CommandContext(ctx, program,
		append([]string{"--server", s.server(), "--cacert", ca, "--cert", cert, "--key", key}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		s.Fatalf("windlass %s: %v\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String()
}
