package pods

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
)

// Directories of the volumes of the driver windlass.dev/local, with users:
//
//	DIR/.volumes/  0711  agent's
//	  id           0600  agent's, random: the cluster notes it with each volume that is made here
//	  UID/         0710  agent's, of the group of the pod that uses it: no other pod's user passes; 0700 without a pod
//	    data/      0770  the pod's
//
// UID is that of the volume, which the cluster chooses. A volume belongs to the user of one pod at a time; the next one
// gets it, with all that is in it, once nothing of the former runs. It is closed when its pod goes, since the number of
// that user is given to another pod some time.

// volumesDir is beside the directories of the pods, and no uid.
const volumesDir = ".volumes"

const (
	storeFile  = "id"
	closedDir  = 0o700
	deepestDir = 2100 // levels of a volume that can be handed over; no path has more
	// openEvery is how many levels of directories take one file descriptor while a volume is handed over.
	openEvery = 20
)

// inUseAgain is how soon it is checked again whether a pod still uses a volume that another one needs, or that is to
// go.
const inUseAgain = time.Second

// errInUse means that another pod, with another user, has a volume.
var errInUse = errors.New("the volume is in use")

func (s *Pods) volumeDir(uid string) string { return filepath.Join(s.cfg.Dir, volumesDir, uid) }

// mountsClaim reports whether a container mounts a volume that is a claim.
func mountsClaim(pod *schedulingv1.Pod, c *schedulingv1.Container) bool {
	return slices.ContainsFunc(c.GetVolumeMounts(), func(m *schedulingv1.VolumeMount) bool {
		return slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
			return v.GetName() == m.GetName() && v.GetPersistentVolumeClaim() != nil
		})
	})
}

// storeID returns the random ID of the directory of volumes, which it makes if there is none.
func (s *Pods) storeID() (string, error) {
	dir := filepath.Join(s.cfg.Dir, volumesDir)
	raw, err := os.ReadFile(filepath.Join(dir, storeFile))
	if err == nil && len(raw) > 0 {
		return string(raw), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.makeDir(dir); err != nil {
		return "", err
	}
	id := rand.Text()
	return id, writeSynced(dir, storeFile, id)
}

// writeSynced writes a file of a directory that is there after a crash of the host, too.
func writeSynced(dir, name, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, name+".new"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// resolveVolumes finds out which volumes the claims of a pod are bound to, once: what is found is written down, so that
// the pod's containers start again also while the cluster does not answer.
func (s *Pods) resolveVolumes(ctx context.Context, p *pod, object *schedulingv1.Pod) error {
	if p.record.Volumes != nil {
		return nil
	}
	store, err := s.storeID()
	if err != nil {
		return err
	}
	m := object.GetMetadata()
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	r, err := s.agents.ResolveVolumes(ctx, &schedulingv1.ResolveVolumesRequest{
		NodeName: s.cfg.Node, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(), StoreId: store,
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound, codes.FailedPrecondition:
		return fmt.Errorf("%w: %s", errConfig, status.Convert(err).Message())
	default:
		return err
	}
	found := map[string]string{}
	for name, v := range r.GetVolumes() {
		if placement.VolumeNode(v) != s.cfg.Node || !plainName(v.GetMetadata().GetUid()) {
			return fmt.Errorf("%w: volume %q is bound to %s, which this node cannot mount", errConfig, name,
				v.GetMetadata().GetName())
		}
		found[name] = v.GetMetadata().GetUid()
	}
	s.mu.Lock()
	p.record.Volumes, p.dirty = found, true
	s.mu.Unlock()
	return s.save(p)
}

// localVolume makes the directory of a pod's volume, and sub in it, ready for the pod's user, and returns its path.
func (s *Pods) localVolume(p *pod, name, sub string, user *process.User) (string, error) {
	uid := p.record.Volumes[name]
	if uid == "" {
		return "", fmt.Errorf("%w: volume %q is not known", errConfig, name)
	}
	dir := s.volumeDir(uid)
	if err := s.makeDir(dir); err != nil {
		return "", err
	}
	if user == nil {
		if err := makeOwn(dir, "data", nil); err != nil {
			return "", err
		}
	} else if err := s.handOver(p, uid, user); err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	if sub == "" {
		return data, nil
	}
	return data, makeOwn(data, path.Clean(filepath.ToSlash(sub)), user)
}

// handOver gives a volume to a pod's user. What runs of another pod that has it would lose it, so that is refused; of
// one that has ended the last processes are killed.
func (s *Pods) handOver(p *pod, uid string, user *process.User) error {
	if !s.begin(uid) { // a large one takes long, and others must not wait for it
		return fmt.Errorf("%w: it is being given to another pod", errInUse)
	}
	defer s.end(uid)
	dir := s.volumeDir(uid)
	r, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	info, err := r.Lstat("data")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = r.Mkdir("data", 0o700)
	case err == nil && fileOwner(info) == user.UID:
		return errors.Join(os.Chmod(dir, podDir), os.Chown(dir, -1, int(user.GID)))
	case err == nil:
		err = s.takeFrom(p, uid, fileOwner(info))
	}
	if err != nil {
		return err
	}
	if err := s.give(r, "data", user, 0); err != nil {
		return err
	}
	return errors.Join(os.Chmod(dir, podDir), os.Chown(dir, -1, int(user.GID)))
}

// begin reports whether a volume can be handed over now: it is not being handed over already.
func (s *Pods) begin(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handing[uid] {
		return false
	}
	s.handing[uid] = true
	return true
}

func (s *Pods) end(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handing, uid)
}

// takeFrom closes a volume and makes sure that nothing of the pod runs that had it, whose user owns it. Another pod may
// have this user by now; it never reached the volume.
func (s *Pods) takeFrom(p *pod, uid string, user uint32) error {
	s.mu.Lock()
	var owner *pod
	for _, other := range s.pods {
		if other != p && other.record.User != 0 && other.record.User == user {
			owner = other
		}
	}
	uses := owner != nil && owner.uses(uid)
	runs := uses && !owner.ended()
	var m *metav1.ObjectMeta
	if owner != nil {
		m = owner.object.GetMetadata()
	}
	s.mu.Unlock()
	if runs {
		return fmt.Errorf("%w by pod %s/%s, which has another user: it is free when that pod has ended", errInUse,
			m.GetNamespace(), m.GetName())
	}
	if err := closeVolume(s.volumeDir(uid)); err != nil {
		return err
	}
	if all := s.cfg.Users; user-all.First >= all.Count || owner != nil && !uses {
		return nil
	}
	return (process.Users{First: user, Count: 1}).Kill()
}

// closeVolume has no pod's user pass to a volume.
func closeVolume(dir string) error {
	err := errors.Join(os.Chmod(dir, closedDir), os.Chown(dir, -1, os.Getegid()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// closeVolumesOf closes the volumes that a pod has.
func (s *Pods) closeVolumesOf(p *pod) error {
	var errs []error
	for _, uid := range p.record.Volumes {
		if !s.begin(uid) {
			continue // another pod gets it
		}
		info, err := os.Lstat(s.volumeDir(uid))
		if err == nil && fileGroup(info) == p.record.User { // else another pod has it
			err = closeVolume(s.volumeDir(uid))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		s.end(uid)
	}
	return errors.Join(errs...)
}

// closeUnused closes the volumes that no pod has that is known: the record of one may have been lost.
func (s *Pods) closeUnused() error {
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, volumesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		used := slices.ContainsFunc(slices.Collect(maps.Values(s.pods)), func(p *pod) bool { return p.uses(e.Name()) })
		if e.IsDir() && !used {
			err = errors.Join(err, closeVolume(s.volumeDir(e.Name())))
		}
	}
	return err
}

// uses reports whether a pod has a volume. The lock is held.
func (p *pod) uses(uid string) bool {
	for _, v := range p.record.Volumes {
		if v == uid {
			return true
		}
	}
	return false
}

// ended reports whether a pod has ended and none of its containers runs. The lock is held.
func (p *pod) ended() bool {
	for _, c := range p.record.Containers {
		if c.Starts > 0 && c.Exit == nil {
			return false
		}
	}
	return p.record.Verdict.Phase != "" || p.over
}

// give changes the owner of a tree that no process writes to, from above, since its directories may be closed to the
// agent, and back. Links are not followed, and of a file that no pod's user owns, which a link may have brought here,
// the owner stays. Directories keep their modes: some programs refuse those that others can write to.
func (s *Pods) give(r *os.Root, name string, user *process.User, depth int) error {
	info, err := r.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if all := s.cfg.Users; fileOwner(info)-all.First >= all.Count {
			return nil
		}
		return r.Lchown(name, int(user.UID), os.Getegid())
	}
	if depth > deepestDir {
		return fmt.Errorf("the volume has directories more than %d levels deep, which no other pod can get", deepestDir)
	}
	if err := errors.Join(r.Lchown(name, os.Geteuid(), os.Getegid()), r.Chmod(name, 0o700)); err != nil {
		return err
	}
	if err := s.giveAllIn(r, name, user, depth+1); err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if depth == 0 {
		mode |= ownDir
	}
	return errors.Join(r.Chmod(name, mode), r.Lchown(name, int(user.UID), os.Getegid()))
}

func (s *Pods) giveAllIn(r *os.Root, name string, user *process.User, depth int) error {
	if depth%openEvery == 0 { // from here, paths are short again
		below, err := r.OpenRoot(name)
		if err != nil {
			return err
		}
		defer below.Close()
		r, name = below, "."
	}
	d, err := r.Open(name)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, n := range names {
		if err := s.give(r, path.Join(name, n), user, depth); err != nil {
			return err
		}
	}
	return nil
}

func fileOwner(info fs.FileInfo) uint32 {
	st, _ := info.Sys().(*syscall.Stat_t) // always on Linux
	return st.Uid
}

func fileGroup(info fs.FileInfo) uint32 {
	st, _ := info.Sys().(*syscall.Stat_t) // always on Linux
	return st.Gid
}

// watchVolumes is one stream of the volumes that are directories of the node.
func (s *Pods) watchVolumes(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.agents.WatchOwnVolumes(ctx, &schedulingv1.WatchOwnVolumesRequest{NodeName: s.cfg.Node})
	if err != nil {
		return err
	}
	for {
		r, err := events.Recv()
		if err != nil {
			return err
		}
		for _, e := range r.GetEvents() {
			uid := e.GetObject().GetMetadata().GetUid()
			s.mu.Lock()
			if e.GetType() == "DELETED" || !placement.DirectoryGoes(e.GetObject()) || !plainName(uid) {
				delete(s.leaving, uid)
			} else {
				s.leaving[uid] = e.GetObject()
				s.cleared.Add(uid)
			}
			s.mu.Unlock()
		}
	}
}

// leavingUIDs returns the uids of the volumes whose directories are to go.
func (s *Pods) leavingUIDs() (uids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.leaving {
		uids = append(uids, uid)
	}
	return uids
}

// clear removes the directory of a volume that is being deleted, once all pods here that have it have ended, and
// reports that.
func (s *Pods) clear(ctx context.Context, uid string) (time.Time, error) {
	s.mu.Lock()
	v := s.leaving[uid]
	used := false
	var ended []uint32
	for _, p := range s.pods {
		switch {
		case !p.uses(uid):
		case !p.ended():
			used = true
		case p.record.User != 0:
			ended = append(ended, p.record.User)
		}
	}
	s.mu.Unlock()
	switch {
	case v == nil:
		return time.Time{}, nil
	case used:
		return time.Now().Add(inUseAgain), nil
	}
	for _, user := range ended {
		if err := (process.Users{First: user, Count: 1}).Kill(); err != nil {
			return time.Time{}, err
		}
	}
	if err := s.removeAll(s.volumeDir(uid)); err != nil {
		return time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	_, err := s.agents.ConfirmVolumeGone(ctx, &schedulingv1.ConfirmVolumeGoneRequest{
		NodeName: s.cfg.Node, Name: v.GetMetadata().GetName(), Uid: uid,
	})
	if err != nil {
		return time.Time{}, err
	}
	s.cfg.Log.InfoContext(ctx, "volume removed", "volume", v.GetMetadata().GetName())
	return time.Time{}, nil
}
