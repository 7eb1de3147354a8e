package service

import (
	"context"
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

// TestContainersOfSeveralMachinesEnd ends those of a machine beside another one whose runtime is gone, and of one that
// never had a container runtime.
func TestContainersOfSeveralMachinesEnd(t *testing.T) {
	c := critest.Start(t)
	base := t.TempDir()
	dirs := []string{filepath.Join(base, "gone"), filepath.Join(base, "machine"), filepath.Join(base, "processes")}
	for dir, endpoint := range map[string]string{
		dirs[0]: "unix://" + filepath.Join(base, "sock"), dirs[1]: c.Endpoint, dirs[2]: "",
	} {
		if err := noteRuntime(dir, endpoint); err != nil {
			t.Fatal(err)
		}
	}
	run(t, c, dirs[1])
	var reported []string
	begun := time.Now()
	err := EndContainers(t.Context(), dirs, slog.New(slog.DiscardHandler), func(name string) {
		reported = append(reported, name)
	})
	if err == nil || !strings.Contains(err.Error(), dirs[0]) || strings.Contains(err.Error(), dirs[1]) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begun); took > endPatience/2 {
		t.Errorf("it took %v", took)
	}
	if want := []string{"pod.a.main", "pod.b.main"}; !slices.Equal(slices.Sorted(slices.Values(reported)), want) {
		t.Errorf("reported %v", reported)
	}
	left, err := c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(left.GetItems()) > 0 {
		t.Errorf("left is %v, %v", left.GetItems(), err)
	}
	for dir, refused := range map[string]bool{dirs[0]: true, dirs[1]: false, dirs[2]: false} {
		for _, endpoint := range []string{"", "unix:///run/other.sock"} {
			if err := noteRuntime(dir, endpoint); (err != nil) != refused {
				t.Errorf("runtime %q for %s: %v", endpoint, dir, err)
			}
		}
	}
}

// run has the agent of a machine start two containers, and end.
func run(t *testing.T, c *critest.Containerd, podsDir string) {
	t.Helper()
	r, err := cri.New(cri.Config{Endpoint: c.Endpoint, Owner: podsDir})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	for _, pool := range []string{"pod.a", "pod.b"} {
		changed := make(chan struct{}, 1)
		if err := r.Ensure(cri.Spec{
			Name: pool + ".main", Pool: pool, Serial: 1, Container: "main", Image: c.Image,
			Command: []string{"/program", "wait"},
			Sandbox: cri.Sandbox{UID: pool, Namespace: "default", Name: pool, LogDir: filepath.Join(podsDir, pool)},
			UID:     65532, GID: 65532, LogPath: "log", Grace: time.Second,
			Changed: func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			},
		}); err != nil {
			t.Fatal(err)
		}
		for st, _ := r.Lookup(pool + ".main"); !st.Running; st, _ = r.Lookup(pool + ".main") {
			select {
			case <-changed:
			case <-time.After(endPatience):
				t.Fatalf("%+v", st)
			}
		}
	}
}

func TestTheDirectoryOfPodsThatEndIsAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse([]string{"--end-containers", "--pods-dir", "pods"}, os.Stderr)
	if want := filepath.Join(here, "pods"); err != nil || c.podsDir != want {
		t.Errorf("%q, %v, want %q", c.podsDir, err, want)
	}
}
