package compose

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/compose"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	upPatience   = 3 * time.Minute
	downPatience = time.Minute

	lookEvery = 200 * time.Millisecond
)

// stack is compose.yaml, run beside whatever else runs on this machine.
type stack struct {
	*testing.T
	engine   *testcontainers.DockerProvider
	name     string
	settings map[string]string // the variables of compose.yaml
	compose  *compose.DockerCompose
	failures []string // printed again behind the logs of the containers, whose length hides them
}

func (s *stack) Error(args ...any) { s.Helper(); s.Errorf("%s", fmt.Sprint(args...)) }
func (s *stack) Fatal(args ...any) { s.Helper(); s.Fatalf("%s", fmt.Sprint(args...)) }

func (s *stack) Errorf(format string, args ...any) {
	s.Helper()
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
	s.T.Errorf(format, args...)
}

func (s *stack) Fatalf(format string, args ...any) {
	s.Helper()
	s.Errorf(format, args...)
	s.FailNow()
}

// newStack returns a stack of which nothing runs yet, and of which nothing is left when the test ends.
func newStack(t *testing.T) *stack {
	t.Helper()
	e := engine(t)
	name := fmt.Sprintf("windlass-test-%d", os.Getpid())
	admin := t.TempDir()
	if err := os.Chmod(admin, 0o777); err != nil { // the containers' root, without capabilities, is another user here
		t.Fatal(err)
	}
	s := &stack{T: t, engine: e, name: name, settings: map[string]string{
		"WINDLASS_IMAGE": image(t, e, name), "WINDLASS_SUBNET": freeSubnet(t), "WINDLASS_PORT": freePort(t),
		"WINDLASS_ADMIN": admin,
	}}
	t.Cleanup(func() {
		if t.Failed() {
			s.tellLogs()
		}
		s.down(compose.RemoveVolumes(true))
		s.nothingIsLeft()
		if t.Failed() {
			t.Logf("--- what failed:\n%s", strings.Join(s.failures, "\n"))
		}
	})
	s.load()
	return s
}

// load reads compose.yaml again: what is known of the containers is about those that ran before.
func (s *stack) load() {
	s.Helper()
	c, err := compose.NewDockerComposeWith(compose.StackIdentifier(s.name),
		compose.WithStackFiles(filepath.Join(harness.Root(), "compose.yaml")))
	if err != nil {
		s.Fatal(err)
	}
	s.compose = c
	c.WithEnv(s.settings)
}

// up starts the stack and waits until the cluster has what it begins with; it returns what was printed.
func (s *stack) up() string {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), upPatience)
	defer cancel()
	s.compose.WaitForService("seed", wait.ForExit())
	if err := s.compose.Up(ctx); err != nil {
		s.Fatal(err)
	}
	state, err := s.container("seed").State(ctx)
	if err != nil {
		s.Fatal(err)
	}
	if state.ExitCode != 0 {
		s.Fatalf("seed ended with exit code %d:\n%s", state.ExitCode, s.log("seed"))
	}
	return s.log("seed")
}

// down stops the stack. Without options the volumes stay.
func (s *stack) down(opts ...compose.StackDownOption) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), downPatience)
	defer cancel()
	if s.compose == nil {
		return
	}
	if err := s.compose.Down(ctx, append(opts, compose.RemoveOrphans(true))...); err != nil {
		s.Error(err)
	}
	if err := s.compose.Close(); err != nil {
		s.Error(err)
	}
	s.compose = nil
}

func (s *stack) container(service string) *testcontainers.DockerContainer {
	s.Helper()
	c, err := s.compose.ServiceContainer(context.Background(), service)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *stack) log(service string) string {
	c, err := s.compose.ServiceContainer(context.Background(), service)
	if err != nil {
		return err.Error()
	}
	r, err := c.Logs(context.Background())
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// tellLogs prints the end of what every container wrote.
func (s *stack) tellLogs() {
	const most = 30
	if s.compose == nil {
		return
	}
	for _, service := range append(topology.Names(), "certificates", "seed") {
		lines := strings.Split(strings.TrimSpace(s.log(service)), "\n")
		s.Logf("--- the end of %s\n%s", service, strings.Join(lines[max(0, len(lines)-most):], "\n"))
	}
}

// healthy waits until every program that runs on says of itself that it is healthy.
func (s *stack) healthy(patience time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		sick := s.unhealthy(ctx)
		if len(sick) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			s.Fatalf("after %s not healthy: %s", patience, strings.Join(sick, ", "))
		case <-time.After(lookEvery):
		}
	}
}

func (s *stack) unhealthy(ctx context.Context) (sick []string) {
	for _, service := range topology.Names() {
		state, err := s.container(service).State(ctx)
		switch {
		case err != nil:
			sick = append(sick, fmt.Sprintf("%s (%v)", service, err))
		case state.Health == nil:
			sick = append(sick, service+" (it has no health check)")
		case state.Health.Status != "healthy":
			sick = append(sick, fmt.Sprintf("%s (%s)", service, state.Health.Status))
		}
	}
	return sick
}

// crash ends a service's program as a crash does, behind the engine's back, and waits until the engine started it
// again. (What docker kill ends counts as stopped by its user.)
func (s *stack) crash(service string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), healthPatience)
	defer cancel()
	id := s.container(service).GetContainerID()
	before, err := s.engine.Client().ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		s.Fatal(err)
	}
	pid := before.Container.State.Pid
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil || !strings.Contains(string(line), id) {
		s.Logf("%s is not killed: the engine's processes are not this host's", service)
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // the container's init, and all of the container with it
		s.Fatal(err)
	}
	for ; ; time.Sleep(lookEvery) {
		now, err := s.engine.Client().ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			s.Fatalf("%s is not started again: %v", service, err)
		}
		if now.Container.State.Running && now.Container.State.Pid != pid {
			return
		}
	}
}

// server is where the gateway is.
func (s *stack) server() string { return "localhost:" + s.settings["WINDLASS_PORT"] }

// admin copies the administrator's certificate, key and authority out of the stack, since the files belong to the
// engine's root, and returns their paths.
func (s *stack) admin() (ca, cert, key string) {
	s.Helper()
	dir := s.TempDir()
	from := s.container("certificates")
	out := [3]string{"ca.crt", "tls.crt", "tls.key"}
	for i, name := range out {
		r, err := from.CopyFileFromContainer(context.Background(), "/cluster/admin/"+name)
		if err != nil {
			s.Fatal(err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			s.Fatal(err)
		}
		out[i] = filepath.Join(dir, name)
		if err := os.WriteFile(out[i], data, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	return out[0], out[1], out[2]
}

// nothingIsLeft looks for containers, networks and volumes of the stack.
func (s *stack) nothingIsLeft() {
	ctx, cancel := context.WithTimeout(context.Background(), downPatience)
	defer cancel()
	own := make(client.Filters).Add("label", "com.docker.compose.project="+s.name)
	api := s.engine.Client()
	var left []string
	containers, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: own})
	if err != nil {
		s.Error(err)
	}
	for _, c := range containers.Items {
		left = slices.Concat(left, c.Names)
	}
	networks, err := api.NetworkList(ctx, client.NetworkListOptions{Filters: own})
	if err != nil {
		s.Error(err)
	}
	for _, n := range networks.Items {
		left = append(left, n.Name)
	}
	volumes, err := api.VolumeList(ctx, client.VolumeListOptions{Filters: own})
	if err != nil {
		s.Error(err)
	}
	for _, v := range volumes.Items {
		left = append(left, v.Name)
	}
	if len(left) > 0 {
		s.Errorf("left behind: %s", strings.Join(left, ", "))
	}
}
