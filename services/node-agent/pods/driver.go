package pods

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// driver runs containers: as processes of the agent's own (processes), or by a runtime behind CRI (runtime). It knows a
// container by the name of processName. What is to run is written down before it is asked for, and may be asked for
// again: it runs once, and goes on without the agent. Methods may be called concurrently.
type driver interface {
	// lacks returns what containers cannot have here, and why.
	lacks() plan.Lacks
	// fetch gets an image, leased, and makes it ready for the next start of a container in a directory. bytes is what a
	// copy of it holds of the disk. Without an image and without an error the driver runs a program that the agent ships.
	fetch(ctx context.Context, r image.Request, dir string, user *process.User, p *image.Progress) (img *image.Cached,
		bytes int64, err error)
	// place says where a container of a directory runs: in an image, or on the host without one.
	place(l *launch, dir string, img *image.Cached) error
	// complete finds the program of a launch, if the driver has to.
	complete(l *launch) error
	// describe returns what is written down of the next start of a container, and makes ready what that needs.
	describe(p *pod, pod *schedulingv1.Pod, of *schedulingv1.Container, c *container, l launch) (start, error)
	// ensure has the last start of a container run, which is written down, or taken over if it does. changed is called
	// when something happened to it. An error means that it cannot run.
	ensure(c *container, changed func()) error
	// look returns the state of a start; false if it was not asked for.
	look(ctx context.Context, p *pod, name string, c *container) (state, bool)

	// Ask sends SIGTERM to the main process of a container, Kill SIGKILL to all. process.ErrNoProcess means that it does
	// not run, or not yet: it is called again then.
	Ask(name string) error
	Kill(name string) error
	// Stop ends a container, also one that was not asked for since the agent began; nil once there is none.
	Stop(ctx context.Context, name string) error
	// EndPool ends what is left of a pod whose containers were all stopped.
	EndPool(ctx context.Context, pool string) error
	// Recorded returns the names of all containers that may run.
	Recorded(ctx context.Context) ([]string, error)
	// halt ends containers, each within its patience.
	halt(ctx context.Context, names []string, patience time.Duration) error
	// Uses returns what each of these pods uses.
	Uses(ctx context.Context, pools []string) (map[string]process.Use, error)
	// written returns how many bytes containers have written to the files of their images, by their names; nil if the
	// agent finds that on its own disk.
	written(ctx context.Context) map[string]int64

	// command runs a command in a container until it ends or ctx does.
	command(ctx context.Context, t target, command []string) (answer, error)
	// exec runs a command in a container for a caller, and returns its exit code.
	exec(ctx context.Context, cancel func(), t target, r *schedulingv1.ExecPodStart, d *delivery) (int32, error)
}

// start is what is written down of a start of a container.
type start struct {
	Spec process.Spec `json:"spec,omitzero"`  // of a process
	Root string       `json:"root,omitempty"` // of the unpacked image, for a process; empty without one
	CRI  *cri.Spec    `json:"cri,omitempty"`  // for a container runtime, in the place of both
}

// state is the state of a start of a container.
type state struct {
	id     string     // once it runs or has run, as the status has it
	awaits string     // what it waits for before it runs; empty: nothing is known
	exit   *plan.Exit // how it ended, once that is known and its log is complete
	broken error      // why it cannot run: it has ended, too
}

// drivers returns all that may have containers: those that an agent without a runtime started go on as processes.
func (s *Pods) drivers() []driver {
	if s.runtime == nil {
		return []driver{s.processes}
	}
	return []driver{s.processes, s.runtime}
}

// driver returns what runs containers that are started from now on.
func (s *Pods) driver() driver {
	if s.runtime == nil {
		return s.processes
	}
	return s.runtime
}

// driverOf returns what runs the last start of a container.
func (s *Pods) driverOf(c *container) driver {
	if c.CRI == nil {
		return s.processes
	}
	return s.runtime
}

// processes runs containers as processes of the agent's own.
type processes struct {
	*process.Supervisor
	pods *Pods

	// Why processes here have no root directories or user namespaces of their own, or make any system call; nil if not.
	roots, namespaces, confinement error
}

func (s *Pods) newProcesses() (*processes, error) {
	d := &processes{
		Supervisor: s.cfg.Supervisor, pods: s,
		roots: process.CanMount(), namespaces: process.CanMap(), confinement: process.CanConfine(),
	}
	if len(s.cfg.ShimCommand) == 0 {
		return nil, errors.New("pods: no command of the shim")
	}
	if d.roots == nil && linksDynamically(s.cfg.ShimCommand[0]) {
		d.roots = fmt.Errorf("%s is linked dynamically and cannot run in them", s.cfg.ShimCommand[0])
	}
	if s.cfg.Users.Count == 0 {
		d.namespaces = errors.New("pods run as the user of their node's agent")
		d.confinement = d.namespaces
	}
	return d, nil
}

func (d *processes) lacks() plan.Lacks {
	return plan.Lacks{Roots: d.roots, Users: d.namespaces, Confinement: d.confinement, Limits: d.CanLimit()}
}

func (d *processes) fetch(ctx context.Context, r image.Request, dir string, user *process.User, p *image.Progress) (
	img *image.Cached, bytes int64, err error,
) {
	img, err = d.pods.cfg.Images.Get(ctx, r, p)
	// The program that the agent ships is present, and takes the place of an image that is not near. A mirror that does
	// not answer may have it.
	if r.Near && (errors.Is(err, image.ErrNotFound) || errors.Is(err, image.ErrNeverPull)) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	select {
	case d.pods.copying <- struct{}{}:
		defer func() { <-d.pods.copying }()
		if err = copyTree(ctx, img.Root, rootOf(dir), user); err == nil {
			return img, diskOf(ctx, rootOf(dir)), nil
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.pods.cfg.Images.Release(img)
	return nil, 0, err
}

func (d *processes) place(l *launch, dir string, img *image.Cached) error {
	l.dir = filepath.Join(dir, "work")
	if err := makeOwn(dir, "work", l.user); err != nil || img == nil {
		return err
	}
	l.root, l.isolated = rootOf(dir), d.roots == nil
	l.dir = filepath.Join(l.root, filepath.FromSlash(cleanPath(img.Config.WorkingDir)))
	return nil
}

func (d *processes) complete(l *launch) (err error) {
	if l.command[0], err = l.files().program(l.command[0], l.dir, l.env); err != nil {
		return err
	}
	if l.isolated {
		l.command[0] = within(l.root, l.command[0])
	} else if l.root != "" && linksDynamically(l.command[0]) {
		return fmt.Errorf("%w: %s of the image is linked dynamically and would use the libraries of the host, since "+
			"containers have no root directories of their own here: %w", errConfig, within(l.root, l.command[0]), d.roots)
	}
	return nil
}

func (d *processes) describe(p *pod, pod *schedulingv1.Pod, of *schedulingv1.Container, c *container, l launch) (
	start, error,
) {
	dir, n := d.pods.containerDir(p.uid, of.GetName()), c.Starts+1
	spec := l.spec(processName(p.uid, of.GetName()), dir, n, d.pods.cfg.ShimCommand)
	var err error
	if spec.Stdout, spec.Stderr, err = d.pods.makeLog(dir, n, l.user); err != nil {
		return start{}, err
	}
	spec.Limits, spec.PoolLimits = limitsOf(of), d.pods.sharedBy(pod)
	return start{Spec: spec, Root: l.root}, nil
}

func (d *processes) ensure(c *container, changed func()) error {
	spec := c.Spec
	spec.Changed = changed
	return d.Ensure(spec)
}

func (d *processes) look(ctx context.Context, p *pod, name string, c *container) (state, bool) {
	st, known := d.Lookup(c.Spec.Name)
	switch {
	case !known:
		return state{}, false
	case st.LastError != nil && !st.Running:
		_ = d.Stop(ctx, c.Spec.Name) // it would retry indefinitely
		return state{broken: st.LastError}, true
	case st.Running:
		return state{id: processID(st.PID)}, true
	case !st.Final || !d.pods.logged(p, c):
		return state{}, true
	}
	ended := howItEnded(exitFile(d.pods.containerDir(p.uid, name), c.Starts), st.LastExit, c.Asked)
	return state{exit: &ended}, true
}

// processID returns the ID of a process in a status.
func processID(pid int) string { return fmt.Sprintf("process://%d", pid) }

// Kill implements driver.
func (d *processes) Kill(name string) error { return d.Signal(name, syscall.SIGKILL) }

// EndPool implements driver.
func (d *processes) EndPool(_ context.Context, pool string) error { return d.Supervisor.EndPool(pool) }

// Recorded implements driver.
func (d *processes) Recorded(context.Context) ([]string, error) {
	names, err := d.Supervisor.Recorded()
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, processPrefix) }), err
}

func (d *processes) halt(ctx context.Context, names []string, patience time.Duration) error {
	d.pods.mu.Lock()
	for _, p := range d.pods.pods {
		for _, c := range p.record.Containers {
			if c.Exit == nil && slices.Contains(names, c.Spec.Name) {
				spec := c.Spec
				spec.Grace = patience
				_ = d.Ensure(spec) // one that is wrong does not run
			}
		}
	}
	d.pods.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		group.Go(func() error { return d.Stop(ctx, name) })
	}
	return group.Wait()
}

// Uses implements driver.
func (d *processes) Uses(_ context.Context, pools []string) (map[string]process.Use, error) {
	return d.Supervisor.Uses(pools)
}

func (d *processes) written(context.Context) map[string]int64 { return nil }
