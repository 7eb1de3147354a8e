package pods

import (
	"cmp"
	"context"
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
	shell       = "/bin/sh"
)

// launch is a container that is ready to be started.
type launch struct {
	command []string // its program has an absolute path
	env     []string
	dir     string
	root    string // of the unpacked image; empty without one
	imageID string
	user    *process.User // nil: the agent's
	ships   bool          // the program is the agent's own, which the user may not reach by its path
}

// spec returns the process of a container's start. On a machine without a shell, such as a container of nothing but
// this program, the container's exit code is known only if the agent sees its end; only its serial number distinguishes
// its starts.
func (l launch) spec(name, dir string, start int) process.Spec {
	var files []process.File
	command := l.command
	_, err := os.Stat(shell)
	shelled := err == nil
	if shelled {
		files = append(files, process.File{Path: exitFile(dir, start), Write: true})
	}
	if l.ships && l.user != nil {
		files = append(files, process.File{Path: command[0]})
		command = append([]string{fmt.Sprintf("/proc/self/fd/%d", 2+len(files))}, command[1:]...)
	}
	if shelled {
		command = append([]string{shell, "-c", shim, shell}, command...)
	}
	return process.Spec{
		Name: name, Path: command[0], Args: command[1:], Env: l.env, Dir: l.dir,
		Pool: poolOf(name), Once: true, Serial: start, OnlyEnv: true, User: l.user, Files: files,
		Wrapper: shelled,
	}
}

// nameOf returns the name of a container that was started.
func nameOf(c *container) string {
	rest := strings.TrimPrefix(c.Spec.Name, processPrefix)
	_, name, _ := strings.Cut(rest, ".")
	return name
}

// prepare makes everything ready for a container to start in dir, whose root has the files of its image. img is nil for
// one without.
func (s *Pods) prepare(ctx context.Context, p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, dir string,
	user *process.User, img *image.Cached,
) (launch, error) {
	l := launch{dir: filepath.Join(dir, "work"), user: user}
	if err := makeOwn(dir, "work", user); err != nil {
		return l, err
	}
	base := []string{"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath)}
	var entrypoint, cmd []string
	switch {
	case img != nil:
		l.imageID, l.root = img.Digest, rootOf(dir)
		base = append([]string{"PATH=" + defaultPath}, img.Config.Env...)
		entrypoint, cmd = img.Config.Entrypoint, img.Config.Cmd
		l.dir = filepath.Join(l.root, filepath.FromSlash(path.Clean("/"+img.Config.WorkingDir)))
	case s.plays(c):
		entrypoint, l.ships = s.hello(c, p.record.Address), true
	}
	volumes, err := s.volumes(p, pod, c, l)
	if err != nil {
		return l, err
	}
	if l.dir, err = workingDir(c.GetWorkingDir(), l); err != nil {
		return l, err
	}
	base = append(base, s.serviceLinks(ctx, pod)...) // those of the agent count more
	base = append(base, "HOME="+l.dir, "HOSTNAME="+cmp.Or(pod.GetSpec().GetHostname(), pod.GetMetadata().GetName()))
	if l.env, err = plan.Environment(pod, c, s.cfg.Address, p.record.Address, append(base, volumes...),
		s.objectsOf(p.uid)); err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	if l.command, err = plan.Command(c, entrypoint, cmd, l.env); err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	l.command[0], err = program(l.command[0], l.root, l.dir, l.env)
	return l, err
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

// hello returns the command of the shipped program.
func (s *Pods) hello(c *schedulingv1.Container, address string) []string {
	out := append(slices.Clone(s.cfg.HelloCommand), "--address", address)
	set := slices.ContainsFunc(c.GetEnv(), func(e *schedulingv1.EnvVar) bool { return e.GetName() == "PORT" })
	switch ports := c.GetPorts(); {
	case len(ports) > 0 && !set:
		out = append(out, "--port", strconv.Itoa(int(ports[0].GetContainerPort())))
	case !set && address == s.cfg.Address: // others here may have the same port, which none of them has declared
		out = append(out, "--any-port")
	}
	return out
}

// volumes makes the directories of a container's volumes and returns the variables that say where they are. Where an
// image is unpacked, links to them are where the container expects them. Disks of clouds and networks, and every other
// source that the node does not have, are refused: a container must not write beside the disk that it relies on. Of the
// host nothing is made for a pod with a user of its own: it gets what that user
// may reach.
func (s *Pods) volumes(p *pod, pod *schedulingv1.Pod, c *schedulingv1.Container, l launch) (env []string, err error) {
	for _, m := range c.GetVolumeMounts() {
		i := slices.IndexFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
			return v.GetName() == m.GetName()
		})
		if i < 0 {
			return nil, fmt.Errorf("%w: the pod has no volume %q", errConfig, m.GetName())
		}
		sub := m.GetSubPath()
		if sub != "" && !filepath.IsLocal(sub) {
			return nil, fmt.Errorf("%w: subPath %q leads out of the volume", errConfig, sub)
		}
		var dir string
		switch v := pod.GetSpec().GetVolumes()[i]; {
		// One without a source is an empty directory, as in Kubernetes.
		case v.GetEmptyDir() != nil, proto.Equal(v, &schedulingv1.Volume{Name: v.GetName()}):
			at := filepath.Join(s.dir(pod.GetMetadata().GetUid()), "volumes")
			dir = filepath.Join(at, v.GetName(), sub)
			if err := s.makeDir(at); err != nil {
				return nil, err
			}
			if err := makeOwn(at, path.Join(v.GetName(), filepath.ToSlash(sub)), l.user); err != nil {
				return nil, err
			}
		case v.GetHostPath() != nil:
			dir = filepath.Join(v.GetHostPath().GetPath(), sub)
			if l.user == nil {
				err = os.MkdirAll(dir, 0o700)
			} else if _, err = os.Stat(dir); err != nil {
				err = fmt.Errorf(
					"%w: hostPath %s cannot be reached, and pods with users of their own have nothing made on the host", errConfig,
					dir)
			}
			if err != nil {
				return nil, err
			}
		case v.GetPersistentVolumeClaim() != nil:
			if dir, err = s.localVolume(p, v.GetName(), sub, l.user); err != nil {
				return nil, err
			}
		case v.GetAwsElasticBlockStore() != nil, v.GetGcePersistentDisk() != nil, v.GetAzureDisk() != nil,
			v.GetIscsi() != nil, v.GetRbd() != nil:
			return nil, fmt.Errorf("%w: volume %q is a disk, which this node cannot mount", errConfig, v.GetName())
		default:
			var ok bool
			if dir, ok, err = s.configVolume(pod, c, v, sub, l.user); err != nil {
				return nil, err
			} else if !ok {
				return nil, fmt.Errorf("%w: volume %q has a source that this node cannot mount", errConfig, v.GetName())
			}
		}
		if err := link(l, m.GetMountPath(), dir); err != nil {
			return nil, err
		}
		env = append(env, plan.VolumeVariable(m.GetName())+"="+dir)
	}
	dir, account, err := s.accountVolume(pod, l.user)
	if err != nil || dir == "" {
		return env, err
	}
	return append(env, account...), link(l, accountPath, dir)
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

// program returns the absolute path of a container's program: in the unpacked image, or on the host if there is none.
func program(name, root, dir string, env []string) (string, error) {
	var places []string
	switch {
	case !strings.Contains(name, "/"):
		for _, d := range filepath.SplitList(variable(env, "PATH")) {
			places = append(places, path.Join(d, name))
		}
	case path.IsAbs(name) || root == "":
		places = []string{name}
	default:
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return "", err
		}
		places = []string{path.Join("/", rel, name)}
	}
	for _, p := range places {
		if full, ok := executable(p, root, dir); ok {
			return full, nil
		}
	}
	where := "on the machine"
	if root != "" {
		where = "in the image"
	}
	return "", fmt.Errorf("%w: no program %q %s", errConfig, name, where)
}

func executable(name, root, dir string) (string, bool) {
	if root == "" {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		info, err := os.Stat(name)
		return name, err == nil && runnable(info)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return "", false
	}
	defer r.Close()
	info, err := r.Stat(strings.TrimPrefix(path.Clean("/"+name), "/"))
	return filepath.Join(root, name), err == nil && runnable(info)
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
