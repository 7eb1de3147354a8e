package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/windlass-dev/windlass/kit/process"
)

// Directories and files of a pod, with users:
//
//	DIR/                 0711  agent's; every pod's user passes through
//	  UID/               0710  agent's, of the pod's group: no other pod's user passes
//	    pod.json         0600  agent's
//	    containers/NAME/ 0711  agent's: the pod can put nothing in the place of its log
//	      logs/N/        0711  agent's
//	        log, …       0600  agent's
//	        stdout, …    0660  the pod's: pipes
//	      exit.N         0600  agent's, open in the container
//	      work/, root/   0770  the pod's
//	    volumes/NAME/    0770  the pod's
//
// The group of what is the pod's is the agent's, which so can read and remove it without the capability to
// ignore modes.

const (
	lastUserFile = "last-user"
	passDir      = 0o711
	podDir       = 0o710
	ownDir       = 0o770
)

// errNoUser means that every user of the machine has a pod.
var errNoUser = errors.New("no user is free to run the pod as")

// openUsers makes the directory that the pods' users pass through, and reads who was given out last.
func (s *Pods) openUsers() error {
	if s.cfg.Users.Count == 0 {
		return nil
	}
	if err := s.cfg.Users.Check(); err != nil {
		return fmt.Errorf("users for pods: %w", err)
	}
	if err := s.makeDir(s.cfg.Dir); err != nil {
		return err
	}
	if raw, err := os.ReadFile(filepath.Join(s.cfg.Dir, lastUserFile)); err == nil {
		last, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
		s.lastUser = uint32(last)
	}
	return nil
}

// user returns whom a pod runs as, nil for the agent's user. It must be saved before it is used. Users are given out
// in turn, so that what one left on the host, in /tmp say, is not soon another one's.
func (s *Pods) user(p *pod) (*process.User, error) {
	if s.cfg.Users.Count == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.record.User == 0 {
		free, err := s.freeUser()
		if err != nil {
			return nil, err
		}
		p.record.User, p.dirty, s.lastUser = free, true, free
		// If this is not written, it is only sooner that the user is given out again.
		_ = os.WriteFile(filepath.Join(s.cfg.Dir, lastUserFile), fmt.Appendln(nil, free), 0o600)
	}
	return &process.User{UID: p.record.User, GID: p.record.User}, nil
}

// freeUser returns the next user that no pod has. The lock is held.
func (s *Pods) freeUser() (uint32, error) {
	taken := map[uint32]bool{}
	for _, p := range s.pods {
		taken[p.record.User] = true
	}
	all := s.cfg.Users
	next := s.lastUser - all.First + 1 // beyond the end if there was none, or one of other users
	for n := range all.Count {
		if uid := all.First + (next%all.Count+n)%all.Count; !taken[uid] {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("%w: %d pods have one", errNoUser, all.Count)
}

// ensureDir makes the directory of a pod.
func (s *Pods) ensureDir(p *pod) error {
	dir := s.dir(p.uid)
	if err := s.makeDir(dir); err != nil || p.record.User == 0 {
		return err
	}
	return errors.Join(os.Chmod(dir, podDir), os.Chown(dir, -1, int(p.record.User)))
}

// makeDir makes a directory of the agent's, which pods' users pass through if they have users of their own.
func (s *Pods) makeDir(dir string) error {
	if s.cfg.Users.Count == 0 {
		return os.MkdirAll(dir, 0o700)
	}
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, passDir)
}

// makeOwn makes the directory name below dir, and those above it, as the user's. Nothing is made outside dir, whatever
// links are in it.
func makeOwn(dir, name string, user *process.User) error {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	if user == nil {
		return r.MkdirAll(name, 0o700)
	}
	at := ""
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		at = path.Join(at, part)
		if info, err := r.Stat(at); err == nil && info.IsDir() {
			continue
		}
		if err := r.Mkdir(at, 0o700); err != nil {
			return err
		}
		made, err := r.OpenRoot(at) // a pod may put a file of the host in its place, but no directory
		if err != nil {
			return err
		}
		err = errors.Join(made.Chmod(".", ownDir), made.Lchown(".", int(user.UID), os.Getegid()), made.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func addMode(r *os.Root, name string, mode fs.FileMode) error {
	info, err := r.Lstat(name)
	if err != nil {
		return err
	}
	return r.Chmod(name, info.Mode().Perm()|mode)
}

// removeAll removes what is at a path, though it may be a pod's user's, and as deep as that user wanted it.
func (s *Pods) removeAll(at string) error { return process.RemoveAll(at) }
