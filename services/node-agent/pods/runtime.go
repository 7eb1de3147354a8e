package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/logger"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// runtime has a container runtime behind CRI run containers. They are in the network of the host, as processes are, and
// have the number of their pod's user.
type runtime struct {
	*cri.Runtime
	pods *Pods
}

// heldDir returns where mounts of the pods of a directory are shown to a container runtime: no directory that is ever
// removed with all that is in it.
func heldDir(podsDir string) string {
	h := fnv.New64a()
	h.Write([]byte(podsDir))
	return filepath.Join("/run/windlass/mounts", strconv.FormatUint(h.Sum64(), 16))
}

// ReleaseMounts ends all mounts that are shown to a container runtime for the pods of a directory.
func ReleaseMounts(podsDir string) error {
	dir := heldDir(podsDir)
	uids, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, uid := range uids {
		err = errors.Join(err, releasePod(filepath.Join(dir, uid.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// releasePod ends the mounts of all containers of a pod, in its directory.
func releasePod(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, process.Release(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// Recorded implements driver. Of a pod whose containers are gone, mounts may be left.
func (r *runtime) Recorded(ctx context.Context) ([]string, error) {
	names, err := r.Runtime.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(heldDir(r.pods.cfg.Dir))
	if errors.Is(err, os.ErrNotExist) {
		return names, nil
	}
	for _, e := range entries {
		names = append(names, processName(e.Name(), ""))
	}
	return names, err
}

// shippedImage is the name of the image that the agent makes of its own program. No registry has that domain: RFC 2606.
const shippedImage = "windlass.invalid/" + helloImage

func (r *runtime) lacks() plan.Lacks {
	return plan.Lacks{
		Users: errors.New("containers of its container runtime have the number of their pod's user"),
		Host:  errors.New("its container runtime starts images only"),
	}
}

func (r *runtime) fetch(ctx context.Context, of image.Request, _ string, _ *process.User, p *image.Progress) (
	*image.Cached, int64, error,
) {
	images := r.pods.cfg.Images
	if !of.Near || images.Knows(of.Ref) {
		img, err := images.Get(ctx, of, p)
		if !of.Near || !errors.Is(err, image.ErrNotFound) && !errors.Is(err, image.ErrNeverPull) {
			return img, 0, err
		}
	}
	hello := r.pods.cfg.HelloCommand
	img, err := images.Builtin(ctx, shippedImage, hello[0], append([]string{image.BuiltinPath}, hello[1:]...), p)
	return img, 0, err
}

func (r *runtime) place(l *launch, _ string, img *image.Cached) error {
	if img == nil {
		return fmt.Errorf("%w: %w", errConfig, r.lacks().Host)
	}
	l.image, l.isolated, l.dir = img.ID, true, cleanPath(img.Config.WorkingDir)
	return nil
}

func (r *runtime) complete(*launch) error { return nil } // the runtime looks for programs in the image

func (r *runtime) describe(p *pod, pod *schedulingv1.Pod, of *schedulingv1.Container, c *container, l launch) (start,
	error,
) {
	dir, n := r.pods.containerDir(p.uid, of.GetName()), c.Starts+1
	logs := startLogDir(dir, n)
	if err := errors.Join(process.RemoveAll(logs), keepLast(dir, n-1)); err != nil {
		return start{}, err
	}
	if err := r.pods.makeDir(logs); err != nil {
		return start{}, err
	}
	mounts, err := r.mounts(r.holdDir(p.uid, of.GetName()), l)
	if err != nil {
		return start{}, fmt.Errorf("%w: %w", errConfig, err)
	}
	m := pod.GetMetadata()
	return start{CRI: &cri.Spec{
		Name: processName(p.uid, of.GetName()), Pool: processPrefix + p.uid, Serial: n,
		Sandbox: cri.Sandbox{
			UID: p.uid, Namespace: m.GetNamespace(), Name: m.GetName(), LogDir: filepath.Dir(dir),
		},
		Container: of.GetName(), Image: l.image, Command: l.command, Env: l.env, Dir: l.dir, Mounts: mounts,
		UID: l.user.UID, GID: l.user.GID, ReadOnlyRoot: l.readOnly, Confined: l.confined,
		Limits: limitsOf(of), PoolLimits: r.pods.sharedBy(pod),
		LogPath: filepath.Join(of.GetName(), logsDir, strconv.Itoa(n), logger.File),
	}}, nil
}

// mounts returns how a runtime shows a container its mounts. The runtime opens paths, and makes in the container what
// is missing to mount at, with all rights. So each mount is opened as the pod's user first and shown in a directory,
// and one in another one is shown in that there. A link of the image that leads into a mount is not seen here: what is
// to be mounted behind it is made by the runtime, though not where the pod's user cannot write.
func (r *runtime) mounts(dir string, l launch) (out []cri.Mount, err error) {
	if err := process.Release(dir); err != nil {
		return nil, err
	}
	if len(l.mounts) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	all := slices.Clone(l.mounts)
	for i := range all {
		all[i].To = cleanPath(all[i].To)
	}
	slices.SortStableFunc(all, func(a, b process.Mount) int { // a mount in another one comes after it
		return strings.Count(a.To, "/") - strings.Count(b.To, "/")
	})
	for i, m := range all {
		if m.To == "/" || within("/proc", m.To) != "" {
			return nil, fmt.Errorf("nothing can be mounted at %s", m.To)
		}
		hold := process.Mount{From: m.From, Sub: m.Sub, ReadOnly: m.ReadOnly}
		if j := slices.IndexFunc(out, func(o cri.Mount) bool { return within(o.To, m.To) != "" }); j >= 0 {
			hold.To = out[j].From
			if err := process.HoldIn(hold, within(out[j].To, m.To), l.user); err != nil {
				return nil, notMounted(m, err)
			}
			continue
		}
		hold.To = filepath.Join(dir, strconv.Itoa(i))
		if err := process.Hold(hold, l.user); err != nil {
			return nil, notMounted(m, err)
		}
		out = append(out, cri.Mount{From: hold.To, To: m.To, ReadOnly: m.ReadOnly})
	}
	return out, nil
}

// notMounted returns the error of Hold for a mount, by its path in the container.
func notMounted(m process.Mount, err error) error {
	return fmt.Errorf("mount %s at %s: %w", filepath.Join(m.From, m.Sub), m.To, errors.Unwrap(err))
}

// holdDir returns where mounts of a container are shown.
func (r *runtime) holdDir(uid, name string) string {
	return filepath.Join(heldDir(r.pods.cfg.Dir), uid, name)
}

func (r *runtime) ensure(c *container, changed func()) error {
	spec := *c.CRI
	spec.Ran, spec.Changed = c.ID != "", changed
	return r.Ensure(spec)
}

func (r *runtime) look(_ context.Context, _ *pod, _ string, c *container) (state, bool) {
	st, known := r.Lookup(c.CRI.Name)
	if !known || st.Serial != c.Starts {
		return state{}, false
	}
	out := state{awaits: st.Waiting, broken: st.LastError}
	if st.Running || st.Final && st.LastError == nil && st.ID != "" { // it may have ended before it was seen to run
		if out.id = c.ID; !strings.HasSuffix(c.ID, "://"+st.ID) {
			out.id = cmp.Or(r.Name(), "cri") + "://" + st.ID // its name may not be known yet
		}
	}
	if st.Final && st.LastError == nil {
		out.exit = &plan.Exit{
			Code: st.Exit.Code, Signal: int(st.Exit.Signal), Reason: st.Exit.Reason, Message: st.Exit.Message,
			Finished: st.Exit.FinishedAt,
		}
		if st.Exit.FinishedAt.IsZero() {
			out.exit.Finished = time.Now()
		}
	}
	return out, true
}

// Ask implements driver.
func (r *runtime) Ask(name string) error { return noProcess(r.Runtime.Ask(name)) }

// Kill implements driver.
func (r *runtime) Kill(name string) error { return noProcess(r.Runtime.Kill(name)) }

// noProcess returns the error of a driver for one of the runtime.
func noProcess(err error) error {
	if errors.Is(err, cri.ErrNoContainer) {
		return fmt.Errorf("%w: %w", process.ErrNoProcess, err)
	}
	return err
}

// Stop implements driver.
func (r *runtime) Stop(ctx context.Context, name string) error {
	if err := r.Runtime.Stop(ctx, name); err != nil {
		return err
	}
	uid, container, _ := partsOf(name)
	if container == "" { // the sandbox of a pod without containers
		return nil
	}
	return process.Release(r.holdDir(uid, container))
}

// EndPool implements driver.
func (r *runtime) EndPool(ctx context.Context, pool string) error {
	if err := r.Runtime.EndPool(ctx, pool); err != nil {
		return err
	}
	return releasePod(filepath.Join(heldDir(r.pods.cfg.Dir), strings.TrimPrefix(pool, processPrefix)))
}

func (r *runtime) halt(ctx context.Context, names []string, patience time.Duration) error {
	if err := r.EndAll(ctx, names, patience); err != nil {
		return err
	}
	return ReleaseMounts(r.pods.cfg.Dir)
}

func (r *runtime) written(ctx context.Context) map[string]int64 {
	bytes, err := r.Disk(ctx)
	if err != nil {
		r.pods.cfg.Log.WarnContext(ctx, "what containers have written is not measured", "error", err)
	}
	return bytes
}

func (r *runtime) command(ctx context.Context, t target, command []string) (answer, error) {
	out, code, err := r.ExecSync(ctx, t.CRI.Name, command, maxAnswer)
	switch {
	case errors.Is(err, cri.ErrNoContainer):
		return answer{}, noProcess(err)
	case errors.Is(err, context.DeadlineExceeded):
		if silent := r.Condition(); silent != nil { // which says nothing about the container
			return answer{}, silent
		}
		return failed("command timed out: %q", strings.Join(command, " ")), nil
	case err != nil:
		return answer{}, err
	case code == 0:
		return answer{ok: true}, nil
	}
	text := fmt.Sprintf("command %q exited with %d: %s", strings.Join(command, " "), code, words(out))
	return answer{message: strings.TrimRight(text, ": \n")}, nil
}

func (r *runtime) exec(ctx context.Context, cancel func(), t target, request *schedulingv1.ExecPodStart,
	d *delivery,
) (code int32, err error) {
	var in io.Reader
	var typed io.WriteCloser
	if request.GetStdin() {
		from, to := io.Pipe()
		defer from.Close() // what is typed after the command's end is dropped
		in, typed = untilClosed{from}, to
	}
	sizes := make(chan cri.Size, 1)
	resize := func(size *schedulingv1.TerminalSize) {
		select { // of several that were not taken yet the last one counts
		case <-sizes:
		default:
		}
		sizes <- cri.Size{
			Columns: uint16(cmp.Or(size.GetColumns(), defaultColumns)), Rows: uint16(cmp.Or(size.GetRows(), defaultRows)),
		}
	}
	if request.GetTty() {
		resize(request.GetTerminalSize())
	}
	d.listenTo(typed, resize, cancel)
	err = r.pods.adopted(ctx, t, func() error {
		n, err := r.Exec(ctx, t.CRI.Name, request.GetCommand(), request.GetTty(), in, output{d, false}, output{d, true},
			sizes)
		code = int32(n)
		return noProcess(err)
	})
	return code, err
}

// untilClosed is a pipe whose reader sees its end also when it was closed there.
type untilClosed struct{ *io.PipeReader }

// Read implements io.Reader.
func (u untilClosed) Read(p []byte) (int, error) {
	n, err := u.PipeReader.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = io.EOF
	}
	return n, err
}
