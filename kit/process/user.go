package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Users is a range of user IDs that are used only for supervised processes. The zero Users is empty. It is a flag
// value, in the form "FIRST-LAST".
type Users struct{ First, Count uint32 }

// Part returns the n-th part of u, counted from 0, of count users each.
func (u Users) Part(n, count uint32) (Users, error) {
	if count == 0 || uint64(n+1)*uint64(count) > uint64(u.Count) {
		return Users{}, fmt.Errorf("part %d of %d users: there are %d", n, count, u.Count)
	}
	return Users{First: u.First + n*count, Count: count}, nil
}

// String returns the users as FIRST-LAST; empty for none.
func (u *Users) String() string {
	if u.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", u.First, u.First+u.Count-1)
}

// Set parses the format of String. User 0 is not allowed.
func (u *Users) Set(text string) error {
	if text == "" {
		*u = Users{}
		return nil
	}
	from, to, ok := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 31)
	last, err2 := strconv.ParseUint(to, 10, 31)
	if !ok || err != nil || err2 != nil || first == 0 || last < first {
		return fmt.Errorf("%q: must be FIRST-LAST, two user IDs of 1 or more", text)
	}
	*u = Users{First: uint32(first), Count: uint32(last - first + 1)}
	return nil
}

// Type is the name of the value in a command's help.
func (u *Users) Type() string { return "FIRST-LAST" }

// Check returns why this process cannot run processes as each of the users; nil if it can.
func (u Users) Check() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can run processes as other users")
	}
	caps, err := effectiveCapabilities()
	if err != nil {
		return err
	}
	for c, name := range map[uint]string{
		unix.CAP_CHOWN: "CHOWN", unix.CAP_KILL: "KILL", unix.CAP_SETGID: "SETGID",
		unix.CAP_SETUID: "SETUID",
	} {
		if caps&(1<<c) == 0 {
			return fmt.Errorf("the capability %s is missing", name)
		}
	}
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		if err := u.mapped(file); err != nil {
			return err
		}
	}
	return nil
}

func effectiveCapabilities() (uint64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), "\nCapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseUint(strings.TrimSpace(line), 16, 64)
}

// mapped returns an error unless the user namespace maps all the users.
func (u Users) mapped(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if uint64(u.First) >= inside && uint64(u.First)+uint64(u.Count) <= inside+count {
			return nil
		}
	}
	return fmt.Errorf("the users %s are not in %s: this is a user namespace without them", u.String(), file)
}

// Kill ends every process of the users, and waits until they are gone.
func (u Users) Kill() error {
	if u.Count == 0 {
		return nil
	}
	return killEach(func(pid int) bool {
		uid := userOf(pid)
		return uid != 0 && uid >= u.First && uid-u.First < u.Count
	})
}

// deepest is how deep the directories are that RemoveAll removes at once: each level takes a file descriptor.
const deepest = 200

// RemoveAll removes a directory and everything in it, also parts that other users own, however deep it is. It needs
// only the capability CHOWN, and that only for what other users own. The processes of these users must have ended. File
// systems of InMemory in it are unmounted.
func RemoveAll(dir string) error {
	if err := Unmount(dir); err != nil {
		return err
	}
	r, err := os.OpenRoot(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	top := filepath.Base(dir)
	for deep := []string{top}; len(deep) > 0; { // what is too deep is moved up, into top, and comes next
		var more []string
		for _, name := range deep {
			found, err := reclaim(r, top, name, strings.Count(name, "/"))
			if err != nil {
				return err
			}
			more = append(more, found...)
		}
		deep = more
	}
	return os.RemoveAll(dir)
}

// reclaim changes the owner of every directory at and below name to the user of this process. Directories that are too
// deep are moved into top, and returned.
func reclaim(r *os.Root, top, name string, depth int) (moved []string, err error) {
	info, err := r.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.Lchown(name, os.Geteuid(), os.Getegid()), r.Chmod(name, 0o700)); err != nil {
		return nil, err
	}
	if depth > deepest {
		to := path.Join(top, rand.Text())
		return []string{to}, r.Rename(name, to)
	}
	entries, err := fs.ReadDir(r.FS(), name)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		more, err := reclaim(r, top, path.Join(name, e.Name()), depth+1)
		if moved = append(moved, more...); err != nil {
			return moved, err
		}
	}
	return moved, nil
}
