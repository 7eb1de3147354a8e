package cri_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

const (
	owner    = "test"
	patience = 20 * time.Second
)

// client is a Runtime that runs until end.
type client struct {
	*cri.Runtime
	end func()
}

// ownerOf returns the owner of the containers of a test: those of others on this host have others.
func ownerOf(c *critest.Containerd) string { return owner + " " + c.Endpoint }

// begin runs a client of a runtime.
func begin(t *testing.T, c *critest.Containerd) *client {
	t.Helper()
	r, err := cri.New(cri.Config{
		Endpoint: c.Endpoint, Owner: ownerOf(c), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.KeepLogs()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	end := func() {
		cancel()
		<-ended
	}
	t.Cleanup(end)
	return &client{r, end}
}

// bench is where the containers of a test write.
type bench struct {
	c   *critest.Containerd
	dir string
}

func newBench(t *testing.T, c *critest.Containerd) bench {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return bench{c, dir}
}

// spec returns a container of a pool named as the test's directory, that runs the program with arguments.
func (b bench) spec(pool, container string, args ...string) cri.Spec {
	return cri.Spec{
		Name: pool + "." + container, Pool: pool, Serial: 1, Container: container, Image: b.c.Image,
		Sandbox: cri.Sandbox{UID: pool, Namespace: "default", Name: "name-of-" + pool, LogDir: filepath.Join(b.dir, pool)},
		Command: append([]string{"/program"}, args...), UID: 65532, GID: 65532, Confined: true,
		LogPath: filepath.Join(container, "1", "log"), Grace: time.Second,
		Mounts: []cri.Mount{{From: b.dir, To: "/notes"}},
	}
}

// starts returns how often a program that writes notes to a file has started.
func (b bench) starts(name string) int {
	data, _ := os.ReadFile(filepath.Join(b.dir, name))
	return strings.Count(string(data), "started")
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// awaitStatus waits for a status of a container.
func awaitStatus(t *testing.T, r *client, name string, want func(cri.Status) bool) cri.Status {
	t.Helper()
	var st cri.Status
	until := time.Now().Add(patience)
	for {
		if st, _ = r.Lookup(name); want(st) {
			return st
		}
		if time.Now().After(until) {
			t.Fatalf("container %s: %+v", name, st)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func runs(st cri.Status) bool  { return st.Running }
func final(st cri.Status) bool { return st.Final }

func ensure(t *testing.T, r *client, spec cri.Spec) {
	t.Helper()
	if err := r.Ensure(spec); err != nil {
		t.Fatal(err)
	}
}

// has returns the containers that the runtime has, with their states.
func has(t *testing.T, c *critest.Containerd) []string {
	t.Helper()
	list, err := c.CRI().ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, c := range list.GetContainers() {
		names = append(names, fmt.Sprintf("%s %d %s", c.GetLabels()["windlass.dev/container"], c.GetMetadata().GetAttempt(),
			strings.TrimPrefix(c.GetState().String(), "CONTAINER_")))
	}
	slices.Sort(names)
	return names
}

func TestAContainerIsStartedAndStopped(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	changed := make(chan struct{}, 100)
	spec := b.spec("pod.a", "main", "wait", "/notes/starts")
	spec.Changed = func() { changed <- struct{}{} }
	ensure(t, r, spec)
	st := awaitStatus(t, r, spec.Name, runs)
	if st.ID == "" || st.Final || st.Serial != 1 {
		t.Errorf("status %+v", st)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("Changed was not called")
	}
	await(t, "a start", func() bool { return b.starts("starts") == 1 })
	if got, err := r.Recorded(t.Context()); err != nil || !slices.Equal(got, []string{spec.Name}) {
		t.Errorf("recorded: %v, %v", got, err)
	}
	if r.Name() != "containerd" || r.Condition() != nil {
		t.Errorf("name %q, condition %v", r.Name(), r.Condition())
	}
	if err := r.Stop(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.Lookup(spec.Name); ok {
		t.Error("a stopped container is known")
	}
	if got, err := r.Recorded(t.Context()); err != nil || !slices.Equal(got, []string{"pod.a."}) {
		t.Errorf("recorded: %v, %v", got, err)
	}
	if err := r.EndPool(t.Context(), "pod.a"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Recorded(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("recorded: %v, %v", got, err)
	}
}
