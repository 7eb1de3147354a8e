package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/podconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// Files of config maps, secrets and fields of the pod, with users:
//
//	DIR/UID/config/VOLUME/           0755  agent's
//	  ..vRANDOM/                     0755  agent's, the files of one state of the objects
//	    PATH                               the pod's, with the mode of the volume
//	  ..data -> ..vRANDOM                  replaced at once with all files
//	  PATH -> ..data/PATH                  the first part of each path
//	DIR/UID/config/VOLUME.CONTAINER/       the same for mounts with subPath, written when the container starts only

const (
	configDir  = "config"
	currentDir = "..data"
	statePart  = "..v"
	readDir    = 0o755
)

// configEvery is how often the objects of a pod are asked for: how late its files are, and how late a container starts
// whose objects were missing.
const configEvery = 5 * time.Second

// configs is what the agent has of the objects of its pods. Values are in memory, and in what containers get.
type configs struct {
	mu    sync.Mutex // also held while files are written
	known map[string]*known
}

// known are the objects of one pod.
type known struct {
	version string
	objects plan.Objects
	written string // the state that the volumes have: the version and the pod's resourceVersion
}

// loadConfig asks for the objects that a pod refers to. If the cluster does not answer, those of the last answer count.
func (s *Pods) loadConfig(ctx context.Context, pod *schedulingv1.Pod) error {
	maps, secrets := podconfig.References(pod.GetSpec())
	if len(maps)+len(secrets) == 0 {
		return nil
	}
	m := pod.GetMetadata()
	s.configs.mu.Lock()
	k := s.configs.known[m.GetUid()]
	s.configs.mu.Unlock()
	r := &schedulingv1.ResolveConfigRequest{
		NodeName: s.cfg.Node, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
	}
	if k != nil {
		r.KnownVersion = k.version
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	out, err := s.agents.ResolveConfig(ctx, r)
	if err != nil {
		if k != nil {
			return nil
		}
		return err
	}
	if out.GetUnchanged() {
		return nil
	}
	next := &known{version: out.GetVersion(), objects: plan.NewObjects(out.GetConfigMaps(), out.GetSecrets())}
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	if s.configs.known == nil {
		s.configs.known = map[string]*known{}
	}
	s.configs.known[m.GetUid()] = next
	return nil
}

// objectsOf returns the objects of a pod as they were last asked for.
func (s *Pods) objectsOf(uid string) plan.Objects {
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	var out plan.Objects
	if k := s.configs.known[uid]; k != nil {
		out = k.objects
	}
	out.Tokens, _ = s.accounts.texts(uid)
	return out
}

// missing has a container wait for an object if that is what err says.
func missing(err error) error { return fmt.Errorf("%w: %w", errConfig, err) }

// configVolume writes the files of a volume and returns the directory; something must be at sub in it. It is false for
// volumes of other types.
func (s *Pods) configVolume(pod *schedulingv1.Pod, c *schedulingv1.Container, v *schedulingv1.Volume, sub string,
	user *process.User,
) (dir string, ok bool, err error) {
	volume, ok, faults := podconfig.VolumeOf(v)
	if !ok {
		return "", false, nil
	}
	if len(faults) > 0 {
		return "", true, fmt.Errorf("%w: volume %q: %s", errConfig, v.GetName(), faults[0])
	}
	files, err := plan.Files(pod, volume, s.objectsOf(pod.GetMetadata().GetUid()))
	if err != nil {
		return "", true, missing(fmt.Errorf("volume %q: %w", v.GetName(), err))
	}
	name := v.GetName()
	if sub != "" {
		name += "." + c.GetName()
	}
	dir = filepath.Join(s.dir(pod.GetMetadata().GetUid()), configDir, name)
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	if err := s.makeDir(dir); err != nil {
		return "", true, err
	}
	if err := writeConfig(dir, files, user); err != nil || sub == "" {
		return dir, true, err
	}
	if _, err := os.Stat(filepath.Join(dir, sub)); err != nil {
		return "", true, fmt.Errorf("%w: volume %q has no file %s", errConfig, v.GetName(), sub)
	}
	return dir, true, nil
}

// writeConfig makes the files of dir those given. They change together, and a file that a process has open stays as it
// was. Paths were checked: they stay in dir, and do not begin with "..".
func writeConfig(dir string, files map[string]plan.File, user *process.User) error {
	if err := os.Chmod(dir, readDir); err != nil {
		return err
	}
	if sameConfig(dir, files) {
		return nil
	}
	next, err := os.MkdirTemp(dir, statePart)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(next, readDir), writeState(next, files, user)); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	link := filepath.Join(dir, currentDir+".new")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(next), link); err != nil {
		return err
	}
	if err := os.Rename(link, filepath.Join(dir, currentDir)); err != nil {
		return err
	}
	return linkConfig(dir, filepath.Base(next), firstParts(files))
}

// firstParts returns the first parts of the paths.
func firstParts(files map[string]plan.File) map[string]bool {
	out := map[string]bool{}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		out[first] = true
	}
	return out
}

// linkConfig makes the links of dir those of the names, and removes all states but the current one.
func linkConfig(dir, current string, names map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch n := e.Name(); {
		case names[n]:
			delete(names, n)
		case n != currentDir && n != current:
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, n)))
		}
	}
	for n := range names {
		err = errors.Join(err, os.Symlink(filepath.Join(currentDir, n), filepath.Join(dir, n)))
	}
	return err
}

func writeState(dir string, files map[string]plan.File, user *process.User) error {
	for name, f := range files {
		at := dir
		parts := strings.Split(name, "/")
		for _, part := range parts[:len(parts)-1] {
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, readDir); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := os.Chmod(at, readDir); err != nil {
				return err
			}
		}
		at = filepath.Join(at, parts[len(parts)-1])
		if err := os.WriteFile(at, f.Data, 0o600); err != nil {
			return err
		}
		// An agent that may not ignore owners, as in a container, changes the mode of its own file only.
		if err := os.Chmod(at, fs.FileMode(f.Mode)); err != nil {
			return err
		}
		if user != nil {
			if err := os.Chown(at, int(user.UID), os.Getegid()); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameConfig reports whether dir has these files.
func sameConfig(dir string, files map[string]plan.File) bool {
	state := filepath.Join(dir, currentDir)
	for name := range firstParts(files) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	current, err := filepath.EvalSymlinks(state)
	if err != nil {
		return false
	}
	count := 0
	err = filepath.WalkDir(current, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(current, at)
		if err != nil {
			return err
		}
		want, ok := files[filepath.ToSlash(name)]
		info, err := e.Info()
		// the size first: the pod's user can make the file large
		if err != nil || !ok || info.Size() != int64(len(want.Data)) || uint32(info.Mode().Perm()) != want.Mode {
			return errors.Join(err, fs.ErrInvalid)
		}
		have, err := os.ReadFile(at)
		if err == nil && !bytes.Equal(have, want.Data) {
			err = fs.ErrInvalid
		}
		count++
		return err
	})
	return err == nil && count == len(files)
}

// followConfig keeps the volumes of the running pods at the state of their objects until ctx ends.
func (s *Pods) followConfig(ctx context.Context) error {
	every := time.NewTicker(configEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		s.mu.Lock()
		live := map[string]*schedulingv1.Pod{}
		user := map[string]*process.User{}
		for uid, p := range s.pods {
			if p.object == nil || p.gone || p.ended() || p.object.GetMetadata().GetDeletionTimestamp() != nil {
				continue
			}
			if live[uid] = p.object; p.record.User != 0 {
				user[uid] = &process.User{UID: p.record.User, GID: p.record.User}
			}
		}
		s.mu.Unlock()
		s.refreshAccounts(ctx, live, user)
		for uid, pod := range live {
			if err := s.refreshConfig(ctx, pod, user[uid]); err != nil && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "volumes of a pod are not up to date", "pod", pod.GetMetadata().GetName(),
					"namespace", pod.GetMetadata().GetNamespace(), "error", err)
			}
		}
		s.forgetConfig(live)
		s.accounts.forget(live)
	}
}

// forgetConfig drops the objects of other pods than these.
func (s *Pods) forgetConfig(live map[string]*schedulingv1.Pod) {
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	for uid := range s.configs.known {
		if live[uid] == nil {
			delete(s.configs.known, uid)
		}
	}
}

// refreshConfig writes the volumes of a pod that some container has, if their objects or the pod changed.
func (s *Pods) refreshConfig(ctx context.Context, pod *schedulingv1.Pod, user *process.User) error {
	m := pod.GetMetadata()
	dir := filepath.Join(s.dir(m.GetUid()), configDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // none, or none of its containers was started
	}
	if err := s.loadConfig(ctx, pod); err != nil {
		return err
	}
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	var objects plan.Objects
	k, state := s.configs.known[m.GetUid()], ""
	tokens, version := s.accounts.texts(m.GetUid())
	if k != nil {
		if state = k.version + "/" + m.GetResourceVersion() + "/" + version; k.written == state {
			return nil
		}
		objects = k.objects
	}
	objects.Tokens = tokens
	var errs []error
	for _, v := range pod.GetSpec().GetVolumes() {
		volume, ok, faults := podconfig.VolumeOf(v)
		at := filepath.Join(dir, v.GetName())
		if _, err := os.Stat(at); !ok || len(faults) > 0 || err != nil {
			continue
		}
		files, err := plan.Files(pod, volume, objects)
		if errors.Is(err, plan.ErrMissing) {
			continue // what was deleted stays in the volume
		}
		if err == nil {
			err = writeConfig(at, files, user)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil && k != nil {
		k.written = state
	}
	return err
}
