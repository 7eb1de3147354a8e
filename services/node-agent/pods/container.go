package pods

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// errConfig means that a container is not as it could be run.
var errConfig = errors.New("wrong settings")

const (
	helloImage  = "hello-pod"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// launch is a container that is ready to be started.
type launch struct {
	command  []string // its program has an absolute path
	env      []string
	dir      string // the working directory; of the host
	root     string // of the unpacked image; empty without one
	imageID  string
	user     *process.User // nil: the agent's
	image    string        // what the driver knows the image by; empty without one
	ships    bool          // the program is the agent's own, which the user may not reach by its path
	isolated bool          // it has a root directory of its own, and mounts are in it: root, or one that a runtime makes
	readOnly bool          // so is root
	confined bool          // its system calls
	hostname string
	mounts   []process.Mount
}

// spec returns the process of a container's start: the shim, which starts the container's command. Executables of the
// agent are passed as open files, since the user may not reach their paths.
func (l launch) spec(name, dir string, start int, shim []string) process.Spec {
	spec := process.Spec{
		Name: name, Env: l.env, Dir: l.dir, Pool: poolOf(name), Once: true, Serial: start, OnlyEnv: true, User: l.user,
		Mounts: l.mounts, Confined: l.confined, Wrapper: true,
		Files: []process.File{{Path: exitFile(dir, start), Write: true}, {Path: shim[0]}},
	}
	if l.isolated {
		spec.Dir = within(l.root, l.dir)
		spec.Root = &process.Root{Dir: l.root, ReadOnly: l.readOnly, Hostname: l.hostname}
	}
	spec.Path = passed(spec)
	command := l.command
	if l.ships && l.user != nil {
		spec.Files = append(spec.Files, process.File{Path: command[0]})
		command = append([]string{passed(spec)}, command[1:]...)
	}
	spec.Args = append(slices.Clone(shim[1:]), command...)
	return spec
}

// passed returns the path of the last file that is passed to a process.
func passed(spec process.Spec) string { return fmt.Sprintf("/proc/self/fd/%d", 2+len(spec.Files)) }

// prepare makes everything ready for a container to start in dir, whose root has the files of its image. img is nil for
// one without.
func (s *Pods) prepare(ctx context.Context, p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, dir string,
	user *process.User, img *image.Cached,
) (launch, error) {
	l := launch{user: user}
	if err := s.driver().place(&l, dir, img); err != nil {
		return l, err
	}
	base := []string{"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath)}
	var entrypoint, cmd []string
	switch {
	case img != nil:
		l.imageID = img.Digest
		base = append([]string{"PATH=" + defaultPath}, img.Config.Env...)
		entrypoint, cmd = img.Config.Entrypoint, img.Config.Cmd
		if slices.ContainsFunc(img.Names, func(n string) bool { return image.Name(n) == shippedImage }) {
			entrypoint = append(slices.Clone(entrypoint), s.helloFlags(c, p.record.Address)...)
		}
	case s.plays(c):
		entrypoint, l.ships = append(slices.Clone(s.cfg.HelloCommand), s.helloFlags(c, p.record.Address)...), true
	}
	home, err := s.runAs(&l, pod, c)
	if err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	hostname := plan.Hostname(pod)
	if pod.GetSpec().GetHostNetwork() || s.runtime != nil { // a runtime's containers have the name of their network's host
		if hostname, err = os.Hostname(); err != nil {
			return l, err
		}
	} else {
		l.hostname = hostname
	}
	base = append(base, s.serviceLinks(ctx, pod)...) // those of the agent count more
	if l.isolated && variable(base, "HOME") == "" {
		base = append(base, "HOME="+home)
	}
	base = append(base, "HOSTNAME="+hostname)
	// Paths of volumes need variables, and these say where volumes are: the former do not see the latter.
	if l.env, err = s.environment(p, pod, c, base); err != nil {
		return l, err
	}
	volumes, err := s.volumes(p, pod, c, &l)
	if err != nil {
		return l, err
	}
	if l.dir, err = workingDir(c.GetWorkingDir(), l); err != nil {
		return l, err
	}
	if !l.isolated {
		base = append(base, "HOME="+l.dir)
	}
	if l.env, err = s.environment(p, pod, c, append(base, volumes...)); err != nil {
		return l, err
	}
	if l.command, err = plan.Command(c, entrypoint, cmd, l.env); err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	return l, s.driver().complete(&l)
}

// cleanPath returns a path of a container, absolute and without detours.
func cleanPath(at string) string { return path.Clean("/" + at) }

// environment returns the variables of a container, which has those of base, too.
func (s *Pods) environment(p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, base []string) ([]string, error) {
	env, err := plan.Environment(pod, c, s.cfg.Address, p.record.Address, base, s.objectsOf(p.uid))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	return env, nil
}

// linksDynamically reports whether a program uses libraries that are not in it.
func linksDynamically(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false // a script, for example
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// serviceLinks returns the variables for the services of a pod's namespace. A container starts without them if they are
// not known: what runs on a machine must not need the cluster.
func (s *Pods) serviceLinks(ctx context.Context, pod *schedulingv1.Pod) []string {
	if s.cfg.Services == nil || !plan.HasServiceLinks(pod) {
		return nil
	}
	services, known := s.cfg.Services(ctx)
	if !known {
		s.cfg.Log.WarnContext(ctx, "container starts without the variables of services, which are not known", "pod",
			pod.GetMetadata().GetName())
	}
	return plan.ServiceVariables(pod, services)
}

// plays reports whether a container without command is a program that the agent ships.
func (s *Pods) plays(c *schedulingv1.Container) bool {
	return len(c.GetCommand()) == 0 && path.Base(image.Name(c.GetImage())) == helloImage && len(s.cfg.HelloCommand) > 0
}

// helloFlags returns the flags of the shipped program.
func (s *Pods) helloFlags(c *schedulingv1.Container, address string) []string {
	out := []string{"--address", address}
	set := slices.ContainsFunc(c.GetEnv(), func(e *schedulingv1.EnvVar) bool { return e.GetName() == "PORT" })
	switch ports := c.GetPorts(); {
	case len(ports) > 0 && !set:
		out = append(out, "--port", strconv.Itoa(int(ports[0].GetContainerPort())))
	case !set && address == s.cfg.Address: // others here may have the same port, which none of them has declared
		out = append(out, "--any-port")
	}
	return out
}

// volumes makes the directories of a container's volumes ready and returns the variables that say where they are. In a
// root directory of the container's own they are mounted where the container expects them; in an unpacked image without
// that, links lead to them. Disks of clouds and networks, and every other source that the node does not have, are
// refused: a container must not write beside the disk that it relies on. Of the host nothing is made for a pod with a
// user of its own: it gets what that user may reach.
func (s *Pods) volumes(p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, l *launch) (env []string, err error) {
	for _, m := range c.GetVolumeMounts() {
		onlyReads := plan.OnlyReads(pod, m.GetName())
		if onlyReads && !l.isolated {
			return nil, fmt.Errorf("%w: volume %q: persistentVolumeClaim.readOnly: the container could write, since nothing "+
				"can be mounted for it", errConfig, m.GetName())
		}
		sub, err := plan.SubPath(m, l.env)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errConfig, err)
		}
		from, err := s.volume(p, pod, c, m.GetName(), sub, l.user)
		if err != nil {
			return nil, err
		}
		at, err := l.show(process.Mount{From: from, Sub: sub, To: m.GetMountPath(), ReadOnly: m.GetReadOnly() || onlyReads})
		if err != nil {
			return nil, err
		}
		env = append(env, plan.VolumeVariable(m.GetName())+"="+at)
	}
	dir, gateway, err := s.accountVolume(pod, l.user)
	if err != nil || dir == "" {
		return env, err
	}
	at, err := l.show(process.Mount{From: dir, To: accountPath, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return append(env, envAccount+"="+at, envServer+"="+gateway, envAuthority+"="+filepath.Join(at, authorityFile)), nil
}

// volume makes what a container mounts of a volume ready, sub of it, and returns the volume's directory or file.
func (s *Pods) volume(p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, name, sub string, user *process.User,
) (from string, err error) {
	i := slices.IndexFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool { return v.GetName() == name })
	if i < 0 {
		return "", fmt.Errorf("%w: the pod has no volume %q", errConfig, name)
	}
	if sub != "" && !filepath.IsLocal(sub) {
		return "", fmt.Errorf("%w: subPath %q leads out of the volume", errConfig, sub)
	}
	switch v := pod.GetSpec().GetVolumes()[i]; {
	// One without a source is an empty directory, as in Kubernetes.
	case v.GetEmptyDir() != nil, proto.Equal(v, &schedulingv1.Volume{Name: name}):
		at := filepath.Join(s.dir(pod.GetMetadata().GetUid()), "volumes")
		if err := s.makeDir(at); err != nil {
			return "", err
		}
		if err := makeOwn(at, name, user); err != nil {
			return "", err
		}
		if v.GetEmptyDir().GetMedium() == mediumMemory {
			if err := s.mountMemory(filepath.Join(at, name), v.GetEmptyDir(), user); err != nil {
				return "", err
			}
		}
		return filepath.Join(at, name), makeOwn(at, path.Join(name, filepath.ToSlash(sub)), user)
	case v.GetHostPath() != nil:
		from = v.GetHostPath().GetPath()
		if at := filepath.Join(from, sub); user == nil {
			err = os.MkdirAll(at, 0o700)
		} else if _, err = os.Stat(at); err != nil {
			err = fmt.Errorf("%w: hostPath %s cannot be reached, and pods with users of their own have nothing made on "+
				"the host", errConfig, at)
		}
		return from, err
	case v.GetPersistentVolumeClaim() != nil:
		return s.localVolume(p, name, sub, user)
	case v.GetAwsElasticBlockStore() != nil, v.GetGcePersistentDisk() != nil, v.GetAzureDisk() != nil,
		v.GetIscsi() != nil, v.GetRbd() != nil:
		return "", fmt.Errorf("%w: volume %q is a disk, which this node cannot mount", errConfig, name)
	default:
		from, ok, err := s.configVolume(pod, c, v, sub, user)
		if err == nil && !ok {
			err = fmt.Errorf("%w: volume %q has a source that this node cannot mount", errConfig, name)
		}
		return from, err
	}
}

// show has a container see a volume, and returns where it does.
func (l *launch) show(m process.Mount) (at string, err error) {
	if !l.isolated {
		dir := filepath.Join(m.From, m.Sub)
		return dir, link(*l, m.To, dir)
	}
	m.To = path.Clean("/" + m.To)
	if m.To == "/" || within("/proc", m.To) != "" {
		return "", fmt.Errorf("%w: nothing can be mounted at %s", errConfig, m.To)
	}
	l.mounts = append(l.mounts, m)
	return m.To, nil
}

// link puts a link to dir at a path of an unpacked image.
func link(l launch, at, dir string) error {
	at = strings.TrimPrefix(path.Clean("/"+at), "/")
	if l.root == "" || at == "" {
		return nil
	}
	if err := makeOwn(l.root, path.Dir(at), l.user); err != nil {
		return err
	}
	r, err := os.OpenRoot(l.root)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.RemoveAll(at); err != nil {
		return err
	}
	return r.Symlink(dir, at)
}

// workingDir returns the directory that a container starts in and makes sure that it is there. Without an image an
// absolute one is the host's.
func workingDir(wanted string, l launch) (string, error) {
	below, rel := l.dir, "."
	switch {
	case l.isolated && l.root == "": // the runtime makes it
		if wanted == "" {
			return l.dir, nil
		}
		return cleanPath(wanted), nil
	case l.root != "":
		if below = l.root; wanted == "" {
			wanted, _ = filepath.Rel(l.root, l.dir)
		}
		rel = path.Clean("/" + wanted)[1:]
	case filepath.IsAbs(wanted):
		if info, err := os.Stat(wanted); err != nil || !info.IsDir() {
			return "", fmt.Errorf("%w: working directory %s is not there", errConfig, wanted)
		}
		return wanted, nil
	case wanted != "":
		rel = path.Clean("/" + wanted)[1:]
	}
	if rel != "" && rel != "." {
		if err := makeOwn(below, rel, l.user); err != nil {
			return "", fmt.Errorf("%w: working directory %s: %w", errConfig, wanted, err)
		}
	}
	return filepath.Join(below, rel), nil
}

// files are those that a container's processes see.
type files struct {
	root   string          // of the unpacked image; empty: the host's
	mounts []process.Mount // in root
}

func (l launch) files() files { return files{l.root, l.mounts} }

// program returns the absolute path, on the host, of a program for processes in a directory: one in root, or of the
// host if there is none.
func (f files) program(name, dir string, env []string) (string, error) {
	var places []string
	switch {
	case !strings.Contains(name, "/"):
		for _, d := range filepath.SplitList(variable(env, "PATH")) {
			places = append(places, path.Join(d, name))
		}
	case path.IsAbs(name) || f.root == "":
		places = []string{name}
	default:
		places = []string{path.Join(within(f.root, dir), name)}
	}
	for _, p := range places {
		if full, ok := f.executable(p, dir); ok {
			return full, nil
		}
	}
	where := "on the machine"
	if f.root != "" {
		where = "in the image"
	}
	return "", fmt.Errorf("%w: no program %q %s", errConfig, name, where)
}

func (f files) executable(name, dir string) (string, bool) {
	if f.root == "" {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		info, err := os.Stat(name)
		return name, err == nil && runnable(info)
	}
	full, below, rest := filepath.Join(f.root, name), f.root, path.Clean("/"+name)
	for _, m := range f.mounts { // the innermost one, later ones first
		if in := within(m.To, path.Clean("/"+name)); in != "" && len(in) <= len(rest) {
			below, rest = filepath.Join(m.From, m.Sub), in
		}
	}
	if rest == "/" { // a single file is mounted
		info, err := os.Stat(below)
		return full, err == nil && runnable(info)
	}
	info, err := statWithin(below, rest)
	return full, err == nil && runnable(info)
}

// statWithin returns what is at a path for processes whose root directory is dir: links lead to what is in it.
func statWithin(dir, name string) (fs.FileInfo, error) {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 5.6, and in engines that filter it
		r, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return r.Stat(strings.TrimPrefix(name, "/"))
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Stat()
}

// within returns the path of what is in a directory for those whose root that is: "/" is the directory itself. It is
// empty for what is not in the directory.
func within(dir, at string) string {
	rel, err := filepath.Rel(dir, at)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return path.Clean("/" + rel)
}

func runnable(info fs.FileInfo) bool { return info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 }

func variable(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}
