package cri_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

func TestHowContainersEnd(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	for _, of := range []struct {
		name    string
		command []string
		change  func(*cri.Spec)
		exit    cri.Exit
		failure string // text of LastError
	}{
		{name: "a success", command: []string{"/program", "exit", "0"}},
		{name: "a failure", command: []string{"/program", "exit", "3"}, exit: cri.Exit{Code: 3}},
		{
			name: "too much memory", command: []string{"/program", "take", "200"},
			change: func(s *cri.Spec) { s.Limits = cgroup.Limits{Memory: 32 << 20} },
			exit:   cri.Exit{Code: 137, Signal: syscall.SIGKILL, Reason: cri.ReasonOutOfMemory},
		},
		{name: "no such program", command: []string{"/none"}, failure: "no such file"},
		{
			name: "an invalid mount", command: []string{"/program", "wait"},
			change: func(s *cri.Spec) {
				s.Mounts = append(s.Mounts, cri.Mount{From: "/proc/self/status", To: "/tmp"}) // a file over a directory
			},
			failure: "mount",
		},
		{
			name: "no such image", command: []string{"/program", "wait"},
			change: func(s *cri.Spec) { s.Image = "127.0.0.1:1/none:1" }, failure: "not found",
		},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			pool := "pod." + strings.ReplaceAll(of.name, " ", "-")
			spec := b.spec(pool, "main")
			spec.Command = of.command
			if of.change != nil {
				of.change(&spec)
			}
			ensure(t, r, spec)
			st := awaitStatus(t, r, spec.Name, final)
			switch {
			case of.failure != "" && (st.LastError == nil || !strings.Contains(st.LastError.Error(), of.failure)):
				t.Errorf("error %v, want %q", st.LastError, of.failure)
			case of.failure == "" && (st.Exit.Code != of.exit.Code || st.Exit.Signal != of.exit.Signal ||
				st.Exit.Reason != of.exit.Reason || st.LastError != nil || st.Exit.StartedAt.IsZero() ||
				st.Exit.FinishedAt.Before(st.Exit.StartedAt)):
				t.Errorf("status %+v", st)
			}
			if st.Running {
				t.Errorf("status %+v", st)
			}
		})
	}
}

func TestHowContainersAreConfined(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	mounted := filepath.Join(b.dir, "mounted")
	if err := os.WriteFile(mounted, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(mounted, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		name   string
		args   []string
		change func(*cri.Spec)
		code   int
		log    []string // regular expressions
	}{
		{
			name: "a confined process", args: []string{"status"},
			change: func(s *cri.Spec) { s.Env, s.Dir, s.UID, s.GID = []string{"KEY=some=value"}, "/tmp", 70001, 70002 },
			log: []string{
				`Uid:\t70001\t70001\t70001\t70001`, `Gid:\t70002\t70002`, `CapEff:\t0000000000000000`, `CapBnd:\t0000000000000000`,
				`NoNewPrivs:\t1`, `Seccomp:\t2`, `Dir:\t/tmp`, `Environment:.*KEY=some=value`, `(?m)Groups:\t(70002)? *$`,
				`NSpid:.*\t1`,
			},
		},
		{
			name: "an unconfined process", args: []string{"status"},
			change: func(s *cri.Spec) { s.Confined = false }, log: []string{`Seccomp:\t0`, `NoNewPrivs:\t1`},
		},
		{name: "a root that can be written to", args: []string{"write", "/tmp/a"}},
		{
			name: "a root that can only be read", args: []string{"write", "/tmp/a"},
			change: func(s *cri.Spec) { s.ReadOnlyRoot = true }, code: 1, log: []string{"read-only file system"},
		},
		{
			name: "a mount of a file", args: []string{"write", "/dev/termination-log"},
			change: func(s *cri.Spec) {
				s.ReadOnlyRoot = true
				s.Mounts = append(s.Mounts, cri.Mount{From: mounted, To: "/dev/termination-log"})
			},
		},
		{
			name: "a mount that can only be read", args: []string{"write", "/read/mounted"},
			change: func(s *cri.Spec) {
				s.Mounts = append(s.Mounts, cri.Mount{From: b.dir, To: "/read", ReadOnly: true})
			},
			code: 1, log: []string{"read-only file system"},
		},
		{
			name: "paths that can only be read", args: []string{"read", "/proc/self/mounts"},
			log: []string{` /proc/sys proc ro`, ` /proc/irq proc ro`, ` /sys sysfs ro`},
		},
		{name: "a masked path", args: []string{"read", "/proc/interrupts"}, log: []string{`^\S+ stdout F \n$`}},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			spec := b.spec("pod."+strings.ReplaceAll(of.name, " ", "-"), "main", of.args...)
			if of.change != nil {
				of.change(&spec)
			}
			ensure(t, r, spec)
			st := awaitStatus(t, r, spec.Name, final)
			data, _ := os.ReadFile(filepath.Join(spec.Sandbox.LogDir, spec.LogPath))
			if st.Exit.Code != of.code || st.LastError != nil {
				t.Errorf("status %+v\n%s", st, data)
			}
			for _, want := range of.log {
				if !regexp.MustCompile(want).Match(data) {
					t.Errorf("%q is not in the log:\n%s", want, data)
				}
			}
		})
	}
}

func TestAskAndKill(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	<-r.Active()
	for _, signal := range []func(string) error{r.Ask, r.Kill} {
		if err := signal("pod.a.main"); !isNoContainer(err) {
			t.Errorf("signal for no container: %v", err)
		}
	}
	polite := b.spec("pod.a", "polite", "wait", "/notes/polite")
	stubborn := b.spec("pod.a", "stubborn", "ignore", "/notes/stubborn")
	stubborn.Grace = time.Hour
	ensure(t, r, polite)
	ensure(t, r, stubborn)
	awaitStatus(t, r, polite.Name, runs)
	awaitStatus(t, r, stubborn.Name, runs)
	await(t, "starts", func() bool { return b.starts("polite") == 1 && b.starts("stubborn") == 1 })
	for range 2 {
		for _, s := range []cri.Spec{polite, stubborn} {
			if err := r.Ask(s.Name); err != nil && !isNoContainer(err) {
				t.Fatal(err)
			}
		}
	}
	if st := awaitStatus(t, r, polite.Name, final); st.Exit.Code != 0 || st.Exit.Signal != 0 {
		t.Errorf("status %+v", st)
	}
	if st, _ := r.Lookup(stubborn.Name); !st.Running || st.Final {
		t.Errorf("status %+v", st)
	}
	if err := r.Kill(stubborn.Name); err != nil {
		t.Fatal(err)
	}
	if st := awaitStatus(t, r, stubborn.Name, final); st.Exit.Code != 137 || st.Exit.Signal != syscall.SIGKILL {
		t.Errorf("status %+v", st)
	}
	if err := r.Ask(polite.Name); !isNoContainer(err) {
		t.Errorf("signal for an ended container: %v", err)
	}
}

func isNoContainer(err error) bool {
	return err != nil && strings.Contains(err.Error(), cri.ErrNoContainer.Error())
}

func TestAnotherSerialIsAnotherContainer(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "wait", "/notes/starts")
	ensure(t, r, spec)
	first := awaitStatus(t, r, spec.Name, runs)
	spec.Serial, spec.LogPath = 2, "main/2/log"
	ensure(t, r, spec)
	second := awaitStatus(t, r, spec.Name, runs)
	if second.ID == first.ID || second.Serial != 2 {
		t.Errorf("%+v after %+v", second, first)
	}
	if got := has(t, c); !slices.Equal(got, []string{"pod.a.main 2 RUNNING"}) {
		t.Errorf("the runtime has %v", got)
	}
	await(t, "starts", func() bool { return b.starts("starts") == 2 })
}

func TestAContainerThatTheRuntimeHasLost(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	seen, unseen := b.spec("pod.a", "seen", "wait", "/notes/seen"), b.spec("pod.a", "unseen", "wait", "/notes/unseen")
	lose := func(id string) {
		t.Helper()
		_, err := c.CRI().RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(r *client, spec cri.Spec, hows ...string) {
		t.Helper()
		st := awaitStatus(t, r, spec.Name, final)
		if st.Exit.Code != 137 || !slices.Contains(hows, cmp.Or(st.Exit.Reason, st.Exit.Signal.String())) ||
			st.LastError != nil || st.Running {
			t.Errorf("status %+v", st)
		}
	}
	ensure(t, r, seen)
	ensure(t, r, unseen)
	lose(awaitStatus(t, r, seen.Name, runs).ID)
	check(r, seen, cri.ReasonUnknown, "killed") // the runtime ends it before it removes it, which may be seen

	id := awaitStatus(t, r, unseen.Name, runs).ID
	r.end()
	lose(id)
	r = begin(t, c)
	ensure(t, r, unseen)
	check(r, unseen, cri.ReasonUnknown)
	if n := b.starts("seen") + b.starts("unseen"); n > 2 {
		t.Errorf("%d starts", n)
	}
	if err := r.Stop(t.Context(), unseen.Name); err != nil { // then it is another one
		t.Fatal(err)
	}
	ensure(t, r, unseen)
	awaitStatus(t, r, unseen.Name, runs)
}

func TestASandboxThatEndsIsReplaced(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "wait", "/notes/starts")
	ensure(t, r, spec)
	awaitStatus(t, r, spec.Name, runs)
	list, err := c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	id := list.GetItems()[0].GetId()
	st, err := c.CRI().PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if m := regexp.MustCompile(`"pid":(\d+)`).FindStringSubmatch(st.GetInfo()["info"]); m == nil {
		t.Fatalf("no pid: %v", st.GetInfo())
	} else if _, err := fmt.Sscan(m[1], &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st := awaitStatus(t, r, spec.Name, final); st.Exit.Code != 0 { // it was asked to end
		t.Errorf("status %+v", st)
	}
	spec.Serial, spec.LogPath = 2, "main/2/log"
	ensure(t, r, spec)
	awaitStatus(t, r, spec.Name, runs)
	other := b.spec("pod.a", "other", "wait")
	ensure(t, r, other)
	awaitStatus(t, r, other.Name, runs)
	list, err = c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 1 || list.GetItems()[0].GetId() == id ||
		list.GetItems()[0].GetMetadata().GetAttempt() != 1 {
		t.Errorf("sandboxes %v, %v", list, err)
	}
	if limitable(t) == nil && (list.GetItems()[0].GetAnnotations()[parentAnnotation] != groupOf(c, "pod.a") ||
		limitOf(t, c, "pod.a") != "max" || !cgroup.FindParents(ownerOf(c)).Used("pod.a")) {
		t.Errorf("its control group is not that of its pool: %v", list)
	}
	if err := r.EndPool(t.Context(), "pod.a"); err != nil {
		t.Error(err)
	}
	awaitNoGroup(t, c, "pod.a")
}

func TestThirtyContainersAtOnce(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	var names []string
	for i := range 30 {
		spec := b.spec(fmt.Sprintf("pod.%d", i/3), fmt.Sprintf("c%d", i%3), "wait", fmt.Sprintf("/notes/%d", i))
		spec.Limits = cgroup.Limits{MilliCPU: 500, Memory: 64 << 20, MilliCPURequest: 10}
		ensure(t, r, spec)
		names = append(names, spec.Name)
	}
	begun := time.Now()
	for i, name := range names {
		awaitStatus(t, r, name, runs)
		await(t, "start", func() bool { return b.starts(fmt.Sprint(i)) == 1 })
	}
	t.Logf("30 containers run after %v", time.Since(begun))
	slices.Sort(names)
	if got, err := r.Recorded(t.Context()); err != nil || !slices.Equal(got, names) {
		t.Errorf("recorded: %v, %v", got, err)
	}
	uses, err := r.Uses(t.Context(), []string{"pod.0", "pod.none"})
	if err != nil || uses["pod.0"].Memory == 0 || uses["pod.0"].CPU == 0 || uses["pod.none"].Memory != 0 ||
		len(uses) != 2 {
		t.Errorf("uses %v, %v", uses, err)
	}
	t.Logf("uses %+v", uses)
	begun = time.Now()
	var group sync.WaitGroup
	for i := range 10 {
		group.Go(func() {
			if err := r.EndPool(t.Context(), fmt.Sprintf("pod.%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	t.Logf("they have ended after %v", time.Since(begun))
	if got, err := r.Recorded(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("recorded: %v, %v", got, err)
	}
}

func TestLogsAreRotated(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "lines", "11000")
	ensure(t, r, spec)
	awaitStatus(t, r, spec.Name, runs)
	path := filepath.Join(spec.Sandbox.LogDir, spec.LogPath)
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return -1
		}
		return info.Size()
	}
	await(t, "output", func() bool {
		data, err := os.ReadFile(path)
		return err == nil && bytes.Count(data, []byte("\n")) == 11000
	})
	for _, n := range []string{"1", "2", "3", "4"} {
		if err := os.WriteFile(path+"."+n, []byte(n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.RotateLogs(t.Context())
	if size(path) != 0 || size(path+".1") < 11000<<10 || size(path+".5") != -1 {
		t.Errorf("sizes %d and %d", size(path), size(path+".1"))
	}
	if data, _ := os.ReadFile(path + ".4"); string(data) != "3" {
		t.Errorf("oldest is %q", data)
	}
	if err := os.Remove(path); err != nil { // as if it was killed after the log was renamed
		t.Fatal(err)
	}
	r.RotateLogs(t.Context())
	if size(path) != 0 {
		t.Error("the log was not opened again")
	}
}

func TestImages(t *testing.T) {
	c := critest.Start(t)
	r := begin(t, c)
	<-r.Active()
	ref := c.Push("other", critest.Image(t, []string{"/data"}, map[string][]byte{"data": []byte("data")}))
	ctx := t.Context()
	present := func(want bool) {
		t.Helper()
		if got, err := r.ImagePresent(ctx, ref); err != nil || got != want {
			t.Errorf("present: %v, %v", got, err)
		}
	}
	present(false)
	if id, err := r.PullImage(ctx, ref); err != nil || id == "" {
		t.Errorf("pull: %q, %v", id, err)
	}
	present(true)
	for range 2 {
		if err := r.RemoveImage(ctx, ref); err != nil {
			t.Error(err)
		}
	}
	present(false)
	if _, err := r.PullImage(ctx, ref+"0"); err == nil {
		t.Error("an image that does not exist was pulled")
	}
	if dir := r.ImageDir(); !strings.HasPrefix(dir, filepath.Dir(strings.TrimPrefix(c.Endpoint, "unix://"))) {
		t.Errorf("images are in %q", dir)
	}
}

func TestTheWritableLayerIsMeasured(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "fill", "/tmp/a", "500")
	ensure(t, r, spec)
	awaitStatus(t, r, spec.Name, runs)
	await(t, "disk use", func() bool {
		sizes, err := r.Disk(t.Context())
		return err == nil && sizes[spec.Name] >= 500<<10
	})
}

func TestInvalidSpecsAndEndpointsAreRefused(t *testing.T) {
	for _, endpoint := range []string{"", "/run/containerd.sock", "unix://run/containerd.sock", "tcp://127.0.0.1:1"} {
		if _, err := cri.New(cri.Config{Endpoint: endpoint, Owner: owner}); err == nil {
			t.Errorf("endpoint %q is taken", endpoint)
		}
	}
	if _, err := cri.New(cri.Config{Endpoint: "unix:///none"}); err == nil {
		t.Error("an empty owner is taken")
	}
	r, err := cri.New(cri.Config{Endpoint: "unix:///none", Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*cri.Spec){
		"root":                func(s *cri.Spec) { s.UID = 0 },
		"group root":          func(s *cri.Spec) { s.GID = 0 },
		"no command":          func(s *cri.Spec) { s.Command = nil },
		"no image":            func(s *cri.Spec) { s.Image = "" },
		"another pool":        func(s *cri.Spec) { s.Pool = "pod.b" },
		"environment":         func(s *cri.Spec) { s.Env = []string{"KEY"} },
		"relative mount":      func(s *cri.Spec) { s.Mounts = []cri.Mount{{From: "a", To: "/a"}} },
		"log elsewhere":       func(s *cri.Spec) { s.LogPath = "../log" },
		"relative logs":       func(s *cri.Spec) { s.Sandbox.LogDir = "logs" },
		"negative serial":     func(s *cri.Spec) { s.Serial = -1 },
		"a pod without a uid": func(s *cri.Spec) { s.Sandbox.UID = "" },
	} {
		spec := bench{&critest.Containerd{Image: "image"}, "/tmp"}.spec("pod.a", "main", "wait")
		if err := r.Ensure(spec); err != nil {
			t.Fatal(err)
		}
		change(&spec)
		if err := r.Ensure(spec); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := r.Stop(context.Background(), "pod.a.main"); !errors.Is(err, cri.ErrNotRunning) {
		t.Errorf("Stop before Run: %v", err)
	}
}
