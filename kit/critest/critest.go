// Package critest starts a private containerd for tests. What it runs and mounts is gone when the test ends.
package critest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patience is how long containerd may take to answer, or to end.
const patience = 30 * time.Second

// source is what the program of the images is built from.
const source = "github.com/windlass-dev/windlass/kit/critest/testdata/program"

// Containerd is a private containerd.
type Containerd struct {
	Endpoint string // for cri.Config
	// Image is an image in containerd that has only /program, which does what its first argument says: see its source,
	// testdata/program. Its entrypoint is "/program wait".
	Image string

	tb       testing.TB
	dir      string
	registry string
	cmd      *exec.Cmd
	conn     *grpc.ClientConn
}

// Start starts a containerd. The test is skipped where it cannot run: without root, containerd, or runc.
func Start(tb testing.TB) *Containerd {
	tb.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		tb.Skip("containerd requires Linux and root")
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "runc", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			tb.Skipf("%s is not installed: %v", program, err)
		}
	}
	dir, err := os.MkdirTemp("", "cri") // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	c := &Containerd{tb: tb, dir: dir, Endpoint: "unix://" + filepath.Join(dir, "sock")}
	tb.Cleanup(c.clean)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	tb.Cleanup(server.Close)
	c.registry = server.Listener.Addr().String()
	program := c.buildProgram()
	c.Push("pause", Image(tb, []string{"/program", "wait"}, map[string][]byte{"program": program}))
	c.configure()
	if c.conn, err = grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		tb.Fatal(err)
	}
	c.Restart()
	c.Image = c.Load("program", Image(tb, []string{"/program", "wait"}, map[string][]byte{"program": program}))
	return c
}

func (c *Containerd) buildProgram() []byte {
	c.tb.Helper()
	path := filepath.Join(c.dir, "program")
	build := exec.CommandContext(c.tb.Context(), "go", "build", "-ldflags=-s -w", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		c.tb.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		c.tb.Fatal(err)
	}
	return data
}

// Image returns an image of executable files by their paths.
func Image(tb testing.TB, entrypoint []string, files map[string][]byte) v1.Image {
	tb.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for path, data := range files {
		header := &tar.Header{Name: path, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			tb.Fatal(err)
		}
	}
	// any user can write here unless the root is read-only
	header := &tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}
	if err := w.WriteHeader(header); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		tb.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Entrypoint: entrypoint},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(tb, img)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return img
}

func diffIDs(tb testing.TB, img v1.Image) []v1.Hash {
	tb.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	return config.RootFS.DiffIDs
}

// Push makes an image known to the registry that containerd can pull from, and returns its reference.
func (c *Containerd) Push(repository string, img v1.Image) string {
	c.tb.Helper()
	ref, err := name.ParseReference(c.registry + "/" + repository + ":1")
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		c.tb.Fatal(err)
	}
	return ref.String()
}

// Load has containerd pull an image, and returns its reference.
func (c *Containerd) Load(repository string, img v1.Image) string {
	c.tb.Helper()
	ref := c.Push(repository, img)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := runtimeapi.NewImageServiceClient(c.conn).PullImage(ctx,
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}, grpc.WaitForReady(true))
	if err != nil {
		c.tb.Fatal(err)
	}
	return ref
}

// CRI returns a client of containerd, for what goes on behind the back of the tested code.
func (c *Containerd) CRI() runtimeapi.RuntimeServiceClient {
	return runtimeapi.NewRuntimeServiceClient(c.conn)
}

const config = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s/pause:1"
  restrict_oom_score_adj = true
  stats_collect_period = 1
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "%[1]s/cni"
`

func (c *Containerd) configure() {
	c.tb.Helper()
	data := fmt.Appendf(nil, config, c.dir, c.registry)
	if err := os.WriteFile(filepath.Join(c.dir, "config.toml"), data, 0o600); err != nil {
		c.tb.Fatal(err)
	}
}

// Restart starts containerd, which does not run, and waits until it answers.
func (c *Containerd) Restart() {
	c.tb.Helper()
	c.run()
	c.await()
}

func (c *Containerd) run() {
	c.tb.Helper()
	out, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		c.tb.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("containerd", "--config", filepath.Join(c.dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.tb.Fatal(err)
	}
	c.cmd = cmd
}

func (c *Containerd) await() {
	c.tb.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := c.CRI().ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			c.tb.Fatalf("containerd does not answer: %v\n%s", err, log)
		}
		c.conn.ResetConnectBackoff()
	}
}

// Kill kills containerd alone: what it runs goes on.
func (c *Containerd) Kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}

// Freeze stops containerd until Thaw: it does not answer.
func (c *Containerd) Freeze() { c.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (c *Containerd) Thaw() { c.signal(syscall.SIGCONT) }

func (c *Containerd) signal(sig syscall.Signal) {
	c.tb.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.tb.Fatal(err)
	}
}

// clean ends what containerd runs, and containerd.
func (c *Containerd) clean() {
	if c.tb.Failed() {
		log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
		c.tb.Logf("end of the log of containerd:\n%s", log[max(0, len(log)-2048):])
	}
	if c.conn != nil {
		if c.cmd != nil {
			_ = c.cmd.Process.Signal(syscall.SIGCONT)
		} else {
			c.run()
		}
		if err := c.removeAll(); err != nil {
			c.tb.Errorf("sandboxes are left: %v", err)
		}
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
		_ = c.cmd.Wait()
		timer.Stop()
		c.conn.Close()
	}
	for _, pid := range c.left() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := unmountBelow(c.dir); err != nil {
		c.tb.Error(err)
		return
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.tb.Error(err)
	}
}

func (c *Containerd) removeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.conn.ResetConnectBackoff()
	list, err := c.CRI().ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for _, s := range list.GetItems() {
		defer removeGroup(s.GetAnnotations()["windlass.dev/cgroup-parent"])
		if _, err := c.CRI().StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
		if _, err := c.CRI().RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup removes a control group that nothing is in, and the one above it, in all hierarchies. An empty path is
// none.
func removeGroup(path string) {
	if path == "" {
		return
	}
	for _, at := range []string{path, filepath.Dir(path)} {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*" + at)
		for _, group := range append(groups, "/sys/fs/cgroup"+at) {
			_ = unix.Rmdir(group) // what is in use stays
		}
	}
}

// left returns the processes that containerd started and that are left: shims, and what a shim leaves whose request was
// cancelled.
func (c *Containerd) left() (pids []int) {
	log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		if strings.Contains(args[0], "containerd-shim") && slices.Contains(args, filepath.Join(c.dir, "sock")) {
			pids = append(pids, pid)
			continue
		}
		groups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if id := idOf.Find(groups); id != nil && bytes.Contains(log, id) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// idOf matches the ID of a container in the name of a control group.
var idOf = regexp.MustCompile(`[0-9a-f]{64}`)

// unmountBelow unmounts what is mounted below a directory.
func unmountBelow(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := slices.Collect(strings.Lines(string(mounts)))
	slices.Reverse(lines)
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[4], dir+"/") {
			continue
		}
		if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", f[4], err)
		}
	}
	return nil
}

// Conn returns the connection to containerd, for services beside that of CRI.
func (c *Containerd) Conn() *grpc.ClientConn { return c.conn }
