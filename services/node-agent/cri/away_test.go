package cri_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

// TestTheRuntimeIsKilled kills it while containers run and while others are made, again and again.
func TestTheRuntimeIsKilled(t *testing.T) {
	t.Parallel()
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	old := b.spec("pod.a", "old", "wait", "/notes/old")
	ensure(t, r, old)
	id := awaitStatus(t, r, old.Name, runs).ID
	var names []string
	for i := range 6 {
		spec := b.spec(fmt.Sprintf("pod.%d", i), "new", "wait", fmt.Sprintf("/notes/%d", i))
		names = append(names, spec.Name)
		ensure(t, r, spec)
		time.Sleep(time.Duration(i*30) * time.Millisecond) // to meet it in the midst of different calls
		c.Kill()
		await(t, "condition", func() bool { return r.Condition() != nil })
		if st, _ := r.Lookup(old.Name); !st.Running || st.Final {
			t.Errorf("while the runtime is away: %+v", st)
		}
		c.Restart()
	}
	for i, name := range names {
		awaitStatus(t, r, name, func(st cri.Status) bool {
			if st.Final {
				t.Fatalf("%+v", st)
			}
			return st.Running
		})
		await(t, "start", func() bool { return b.starts(fmt.Sprint(i)) > 0 })
		if n := b.starts(fmt.Sprint(i)); n != 1 {
			t.Errorf("%s was started %d times", name, n)
		}
	}
	await(t, "condition", func() bool { return r.Condition() == nil })
	if st, _ := r.Lookup(old.Name); !st.Running || st.ID != id || b.starts("old") != 1 {
		t.Errorf("status %+v, %d starts", st, b.starts("old"))
	}
	if got := has(t, c); len(got) != 7 {
		t.Errorf("the runtime has %v", got)
	}
	sandboxes, err := c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{}}, // ready
	})
	if err != nil || len(sandboxes.GetItems()) != 7 {
		t.Errorf("%d sandboxes, %v", len(sandboxes.GetItems()), err)
	}

	// What ends, or is asked to end, while the runtime is away is noticed later.
	if err := r.Ask(old.Name); err != nil {
		t.Fatal(err)
	}
	c.Kill()
	ended := make(chan error, 1)
	go func() { ended <- r.Stop(t.Context(), names[0]) }()
	if err := r.Ask(names[1]); err != nil {
		t.Fatal(err)
	}
	c.Restart()
	for _, name := range []string{old.Name, names[1]} {
		if st := awaitStatus(t, r, name, final); st.LastError != nil || st.Exit.Reason != "" {
			t.Errorf("status %+v", st)
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("Stop goes on")
	}
}

func TestTheRuntimeDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	old, spec := b.spec("pod.a", "old", "wait", "/notes/old"), b.spec("pod.b", "new", "wait", "/notes/new")
	ensure(t, r, old)
	awaitStatus(t, r, old.Name, runs)
	c.Freeze()
	begun := time.Now()
	ensure(t, r, spec)
	for time.Since(begun) < 11*time.Second {
		asked := time.Now()
		if st, ok := r.Lookup(old.Name); !ok || !st.Running || st.Final {
			t.Fatalf("status %+v", st)
		}
		if st, ok := r.Lookup(spec.Name); !ok || st.Running || st.Final {
			t.Fatalf("status %+v", st)
		}
		if took := time.Since(asked); took > time.Second {
			t.Fatalf("Lookup took %v", took)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if r.Condition() == nil {
		t.Error("no condition")
	}
	c.Thaw()
	awaitStatus(t, r, spec.Name, runs)
	await(t, "condition", func() bool { return r.Condition() == nil })
	await(t, "start", func() bool { return b.starts("new") == 1 })
	if got := has(t, c); !slices.Equal(got, []string{"pod.a.old 1 RUNNING", "pod.b.new 1 RUNNING"}) {
		t.Errorf("the runtime has %v", got)
	}
}

func TestTheRuntimeIsNotThereYet(t *testing.T) {
	t.Parallel()
	c := critest.Start(t)
	b := newBench(t, c)
	c.Kill()
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "wait", "/notes/starts")
	ensure(t, r, spec)
	st := awaitStatus(t, r, spec.Name, func(st cri.Status) bool { // the first try may be faster than the first listing
		return strings.Contains(st.Waiting, "does not answer")
	})
	if st.Final || st.Running || r.Condition() == nil {
		t.Errorf("status %+v, condition %v", st, r.Condition())
	}
	select {
	case <-r.Active():
		t.Error("active")
	default:
	}
	if r.Name() != "" {
		t.Errorf("name %q", r.Name())
	}
	c.Restart()
	if st := awaitStatus(t, r, spec.Name, runs); st.Waiting != "" {
		t.Errorf("status %+v", st)
	}
	await(t, "Active", func() bool {
		select {
		case <-r.Active():
			return true
		default:
			return false
		}
	})
}

// TestAnAgentThatIsKilled kills a process that keeps containers at different moments, and has another client take over.
func TestAnAgentThatIsKilled(t *testing.T) {
	if endpoint := os.Getenv("CRI_TEST_ENDPOINT"); endpoint != "" {
		agent(t, endpoint)
		return
	}
	c := critest.Start(t)
	b := newBench(t, c)
	for i := range 12 {
		pool := fmt.Sprintf("pod.%d", i)
		cmd := exec.Command(os.Args[0], "-test.run=^TestAnAgentThatIsKilled$")
		cmd.Env = append(os.Environ(), "CRI_TEST_ENDPOINT="+c.Endpoint, "CRI_TEST_DIR="+b.dir, "CRI_TEST_IMAGE="+c.Image,
			"CRI_TEST_POOL="+pool, fmt.Sprintf("CRI_TEST_FILE=starts-%d", i))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it begins
			t.Error(err)
		}
		time.Sleep(time.Duration(i*20) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	before := has(t, c)
	r := begin(t, c)
	var names []string
	for i := range 12 {
		spec := b.spec(fmt.Sprintf("pod.%d", i), "main", "wait", fmt.Sprintf("/notes/starts-%d", i))
		ensure(t, r, spec)
		names = append(names, spec.Name+" 1 RUNNING")
	}
	for i := range 12 {
		st := awaitStatus(t, r, fmt.Sprintf("pod.%d.main", i), func(st cri.Status) bool { return st.Running || st.Final })
		file := fmt.Sprintf("starts-%d", i)
		if st.Final { // the kill met the moment in which the runtime began its program
			t.Logf("status %+v", st)
			names[i] = fmt.Sprintf("pod.%d.main 1 EXITED", i)
			if st.Exit.Reason != cri.ReasonUnknown || st.LastError != nil || b.starts(file) > 1 {
				t.Errorf("status %+v, %d starts", st, b.starts(file))
			}
			continue
		}
		await(t, "start", func() bool { return b.starts(file) > 0 })
		if n := b.starts(file); n != 1 {
			t.Errorf("%s: %d starts", file, n)
		}
	}
	slices.Sort(names)
	if got := has(t, c); !slices.Equal(got, names) {
		t.Errorf("the runtime has %v", got)
	}
	sandboxes, err := c.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(sandboxes.GetItems()) != 12 {
		t.Errorf("%d sandboxes, %v", len(sandboxes.GetItems()), err)
	}
	t.Logf("when the last agent was killed: %v", before)
}

// agent keeps one container until it is killed.
func agent(t *testing.T, endpoint string) {
	b := bench{&critest.Containerd{Endpoint: endpoint, Image: os.Getenv("CRI_TEST_IMAGE")}, os.Getenv("CRI_TEST_DIR")}
	pool := os.Getenv("CRI_TEST_POOL")
	r := begin(t, b.c)
	fmt.Print(".")
	ensure(t, r, b.spec(pool, "main", "wait", "/notes/"+os.Getenv("CRI_TEST_FILE")))
	<-t.Context().Done() // never
}
