package pods

import (
	"cmp"
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
}

// spec returns the process of a container's start. On a machine without a shell, such as a container of nothing but this program, the
// container's exit code is known only if the agent sees its end; its serial number alone tells one start from the next.
func (l launch) spec(name, dir string, start int) process.Spec {
	command := append([]string{shell, "-c", shim, exitFile(dir, start)}, l.command...)
	if _, err := os.Stat(shell); err != nil {
		command = l.command
	}
	return process.Spec{
		Name: name, Path: command[0], Args: command[1:], Env: l.env, Dir: l.dir, LogFile: filepath.Join(dir, logFile),
		Once: true, Serial: start, OnlyEnv: true,
	}
}

// nameOf returns the name of a container that was started.
func nameOf(c *container) string {
	rest := strings.TrimPrefix(c.Spec.Name, processPrefix)
	_, name, _ := strings.Cut(rest, ".")
	return name
}

// prepare makes everything ready for a container to start in dir.
func (s *Pods) prepare(pod *schedulingv1.Pod, c *schedulingv1.Container, dir string) (launch, error) {
	l := launch{dir: filepath.Join(dir, "work")}
	img, err := s.imageOf(c)
	if err != nil {
		return l, err
	}
	base := []string{"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath)}
	var entrypoint, cmd []string
	switch {
	case img != nil:
		l.imageID, l.root = img.Digest, filepath.Join(dir, "root")
		if err := unpackOnce(img, l.root); err != nil {
			return l, err
		}
		base = append([]string{"PATH=" + defaultPath}, img.Env...)
		entrypoint, cmd = img.Entrypoint, img.Cmd
		l.dir = filepath.Join(l.root, filepath.FromSlash(path.Clean("/"+img.WorkingDir)))
	case s.plays(c):
		entrypoint = s.hello(c)
	}
	volumes, err := s.volumes(pod, c, l.root)
	if err != nil {
		return l, err
	}
	if l.dir, err = workingDir(c.GetWorkingDir(), l); err != nil {
		return l, err
	}
	base = append(base, "HOME="+l.dir, "HOSTNAME="+cmp.Or(pod.GetSpec().GetHostname(), pod.GetMetadata().GetName()))
	if l.env, err = plan.Environment(pod, c, s.cfg.Address, append(base, volumes...)); err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	if l.command, err = plan.Command(c, entrypoint, cmd, l.env); err != nil {
		return l, fmt.Errorf("%w: %w", errConfig, err)
	}
	l.command[0], err = program(l.command[0], l.root, l.dir, l.env)
	return l, err
}

// imageOf returns the image of a container; nil if it runs without one: as a program that the agent ships, or by its command alone.
func (s *Pods) imageOf(c *schedulingv1.Container) (*image.Image, error) {
	if c.GetImage() == "" {
		return nil, nil
	}
	img, err := s.cfg.Images.Find(c.GetImage())
	if errors.Is(err, image.ErrNotFound) && (len(c.GetCommand()) > 0 || s.plays(c)) {
		return nil, nil
	}
	return img, err
}

// plays reports whether a container without command is a program that the agent ships.
func (s *Pods) plays(c *schedulingv1.Container) bool {
	return len(c.GetCommand()) == 0 && path.Base(image.Name(c.GetImage())) == helloImage && len(s.cfg.HelloCommand) > 0
}

// hello returns the command of the shipped program.
func (s *Pods) hello(c *schedulingv1.Container) []string {
	out := append(slices.Clone(s.cfg.HelloCommand), "--address", s.cfg.Address)
	set := slices.ContainsFunc(c.GetEnv(), func(e *schedulingv1.EnvVar) bool { return e.GetName() == "PORT" })
	if ports := c.GetPorts(); len(ports) > 0 && !set {
		out = append(out, "--port", strconv.Itoa(int(ports[0].GetContainerPort())))
	}
	return out
}

// unpackOnce unpacks an image into root, unless that one is there already.
func unpackOnce(img *image.Image, root string) error {
	mark := root + ".digest"
	if is, err := os.ReadFile(mark); err == nil && string(is) == img.Digest {
		return nil
	}
	if err := errors.Join(os.RemoveAll(mark), os.RemoveAll(root)); err != nil { // the mark first: it must never stand for what is not there
		return err
	}
	if err := img.Unpack(root); err != nil {
		return err
	}
	return os.WriteFile(mark, []byte(img.Digest), 0o600)
}

// volumes makes the directories of a container's volumes and returns the variables that say where they are. Where an image is unpacked, links
// to them stand where the container expects them. Volumes other than empty directories and paths of the host are left out.
func (s *Pods) volumes(pod *schedulingv1.Pod, c *schedulingv1.Container, root string) (env []string, err error) {
	for _, m := range c.GetVolumeMounts() {
		i := slices.IndexFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool { return v.GetName() == m.GetName() })
		if i < 0 {
			return nil, fmt.Errorf("%w: the pod has no volume %q", errConfig, m.GetName())
		}
		var dir string
		switch v := pod.GetSpec().GetVolumes()[i]; {
		case v.GetEmptyDir() != nil:
			dir = filepath.Join(s.dir(pod.GetMetadata().GetUid()), "volumes", v.GetName())
		case v.GetHostPath() != nil:
			dir = v.GetHostPath().GetPath()
		default:
			continue
		}
		if sub := m.GetSubPath(); sub != "" {
			if !filepath.IsLocal(sub) {
				return nil, fmt.Errorf("%w: subPath %q leads out of the volume", errConfig, sub)
			}
			dir = filepath.Join(dir, sub)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		if err := link(root, m.GetMountPath(), dir); err != nil {
			return nil, err
		}
		env = append(env, plan.VolumeVariable(m.GetName())+"="+dir)
	}
	return env, nil
}

// link puts a link to dir at a path of an unpacked image.
func link(root, at, dir string) error {
	at = strings.TrimPrefix(path.Clean("/"+at), "/")
	if root == "" || at == "" {
		return nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := errors.Join(r.MkdirAll(path.Dir(at), 0o700), r.RemoveAll(at)); err != nil {
		return err
	}
	return r.Symlink(dir, at)
}

// workingDir returns the directory that a container starts in and makes sure that it is there. Without an image an absolute one is the host's.
func workingDir(wanted string, l launch) (string, error) {
	dir := l.dir
	switch {
	case wanted != "" && l.root != "":
		dir = filepath.Join(l.root, path.Clean("/"+wanted))
	case filepath.IsAbs(wanted):
		if info, err := os.Stat(wanted); err != nil || !info.IsDir() {
			return "", fmt.Errorf("%w: working directory %s is not there", errConfig, wanted)
		}
		return wanted, nil
	case wanted != "":
		dir = filepath.Join(dir, path.Clean("/"+wanted))
	}
	return dir, os.MkdirAll(dir, 0o700)
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
