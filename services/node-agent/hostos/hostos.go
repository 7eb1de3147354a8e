// Package hostos installs operating systems on a machine: each in a directory of its own beside the one that runs, so
// that a boot link alone says which of the two the next boot runs, and the one before can run again. The directories
// are the driver "local", of machines that are processes or containers of a host: they share its kernel. A driver of
// hosts with a boot loader has the same methods.
package hostos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/machineconfig"
)

// Files below the directory of the operating systems.
const (
	bootLink   = "boot"        // to the deployment that the next boot runs; none: the machine's first system
	bootedFile = "booted.json" // what the boot runs in which the link was changed
	// Of a deployment.
	recordFile = "deployment.json" // what it is; written last
	rootDir    = "root"            // the files of the image and of extensions
	cmdline    = "cmdline"         // the kernel arguments

	extensionsDir = "extensions" // of an image of extensions: a directory with the files of each
	partial       = ".new"       // ends the names of deployments that are being made
)

// slots are the names of deployments.
var slots = []string{"a", "b"}

// ErrMissing means that an image has no extension of a name, or that a deployment is not complete.
var ErrMissing = errors.New("missing")

// Driver installs operating systems. A deployment is named by a word; the empty one is the system that the machine was
// made with. Stage and Select are called one at a time; the others may be called concurrently.
type Driver interface {
	// Find returns the deployment that is a system, and false if there is none.
	Find(s machineconfig.System) (deployment string, found bool)
	// Stage has a system ready to boot, and returns its deployment. It replaces neither the deployment that runs nor the
	// one that boots next. A system that is there already costs nothing.
	Stage(ctx context.Context, s machineconfig.System) (deployment string, err error)
	// Select has the next boot run a deployment.
	Select(deployment string) error
	// Selected returns which deployment the next boot runs.
	Selected() (deployment string, err error)
	// Booted returns which deployment this boot runs, and what that is.
	Booted() (deployment string, s machineconfig.System, err error)
	// Root returns the directory with the files of the system that runs; empty if those are the host's.
	Root() string
}

// Unpack writes the files of an image into a directory that it makes in one step.
type Unpack func(ctx context.Context, image, dir string) error

type local struct {
	dir, boot string
	booted    string
	broken    error // why that is not known
	unpack    Unpack
}

// booted is what a boot runs.
type booted struct {
	Boot       string `json:"boot"`
	Deployment string `json:"deployment,omitempty"`
}

// Local returns the driver of a machine whose operating systems are in dir. The boot of that ID runs what the boot link
// said when it began.
func Local(dir, bootID string, unpack Unpack) Driver {
	l := &local{dir: dir, boot: bootID, unpack: unpack}
	for _, slot := range slots {
		_ = os.RemoveAll(l.path(slot) + partial) // of an agent that was killed; Stage removes what is left
	}
	var b booted
	data, err := os.ReadFile(filepath.Join(dir, bootedFile))
	if err == nil && json.Unmarshal(data, &b) == nil && b.Boot == bootID {
		l.booted = b.Deployment
		return l
	}
	if l.booted, l.broken = l.Selected(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.broken = errors.Join(l.broken, err)
	}
	return l
}

// Stage implements Driver.
func (l *local) Stage(ctx context.Context, s machineconfig.System) (string, error) {
	next, err := l.Selected()
	if err = errors.Join(err, l.broken); err != nil {
		return "", err
	}
	if slot, found := l.Find(s); found {
		return slot, nil
	}
	free := slices.DeleteFunc(slices.Clone(slots), func(slot string) bool { return slot == l.booted || slot == next })
	if len(free) == 0 {
		return "", fmt.Errorf("%s runs and %s boots next: the machine has to be restarted first", l.booted, next)
	}
	slot := free[0]
	if i := slices.IndexFunc(free, func(slot string) bool { _, err := l.record(slot); return err != nil }); i >= 0 {
		slot = free[i] // it has nothing
	}
	// The former system goes when the next one is there, unless the disk has no room for both.
	fresh := l.path(slot) + partial
	err = l.make(ctx, fresh, s)
	if errors.Is(err, syscall.ENOSPC) {
		if err = l.remove(slot); err == nil {
			err = l.make(ctx, fresh, s)
		}
	}
	if err == nil {
		err = l.remove(slot)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(fresh))
	}
	return slot, durable.Rename(fresh, l.path(slot))
}

// remove removes a deployment, which is none any more as soon as its record is gone.
func (l *local) remove(slot string) error {
	if err := durable.Remove(filepath.Join(l.path(slot), recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(l.path(slot))
}

// Find implements Driver.
func (l *local) Find(s machineconfig.System) (string, bool) {
	if s.Equal(machineconfig.System{}) {
		return "", true
	}
	for _, slot := range slots {
		if has, err := l.record(slot); err == nil && has.Equal(s) {
			return slot, true
		}
	}
	return "", false
}

// make writes a deployment to the disk, and its record last.
func (l *local) make(ctx context.Context, dir string, s machineconfig.System) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root := filepath.Join(dir, rootDir)
	if s.Image != "" {
		if err := l.unpack(ctx, s.Image, root); err != nil {
			return err
		}
	} else if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	if len(s.Extensions) > 0 {
		all := filepath.Join(dir, extensionsDir)
		if err := l.unpack(ctx, s.ExtensionsImage, all); err != nil {
			return err
		}
		for _, name := range s.Extensions {
			if err := extend(root, all, name); err != nil {
				return fmt.Errorf("extension %s of %s: %w", name, s.ExtensionsImage, err)
			}
		}
		if err := os.RemoveAll(all); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, cmdline), []byte(strings.Join(s.KernelArguments, " ")+"\n"),
		0o600); err != nil {
		return err
	}
	if err := syncDisk(dir); err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, recordFile), data, 0o600)
}

// extend moves the files of an extension to those of a system. A file that is there already is an error: which of the
// two counts is not for us to say. The image may be hostile: no link is followed.
func extend(root, all, name string) error {
	for _, dir := range []string{extensionsDir, extensionsDir + "/" + name} {
		info, err := os.Lstat(filepath.Join(all, dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: the image has no directory /%s", ErrMissing, dir)
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%w: /%s of the image is no directory", ErrMissing, dir)
		}
	}
	from := filepath.Join(all, extensionsDir, name)
	to, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer to.Close()
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		has, err := to.Lstat(rel)
		switch {
		case e.IsDir() && err == nil && has.IsDir():
			return nil
		case err == nil:
			return fmt.Errorf("/%s is in the system already", rel)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case e.IsDir():
			info, err := e.Info()
			if err != nil {
				return err
			}
			return to.Mkdir(rel, info.Mode().Perm())
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return to.Symlink(moved(target, rel, name), rel)
		}
		// The directory was looked up within root, so this leads nowhere else.
		return os.Rename(path, filepath.Join(root, rel))
	})
}

// moved returns the target of a link of an extension once that is part of a system. Links of images are relative; one
// that leads out of the extension is to a path of the system.
func moved(target, rel, name string) string {
	of := "/" + extensionsDir + "/" + name
	to := path.Join(of, path.Dir(rel), target) // never above the root of the image
	if to == of || strings.HasPrefix(to, of+"/") {
		return target
	}
	out, err := filepath.Rel(path.Dir("/"+rel), to)
	if err != nil {
		return target
	}
	return out
}

// syncDisk has all that was written to the disk of a directory survive a loss of power.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Select implements Driver.
func (l *local) Select(deployment string) error {
	if selected, err := l.Selected(); err != nil || l.broken != nil || selected == deployment {
		return errors.Join(err, l.broken)
	}
	data, err := json.Marshal(booted{l.boot, l.booted})
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(l.dir, bootedFile), data, 0o600); err != nil {
		return err
	}
	link := filepath.Join(l.dir, bootLink)
	if deployment == "" {
		if err := durable.Remove(link); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if _, err := l.record(deployment); err != nil {
		return err
	}
	if err := os.Remove(link + partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(deployment, link+partial); err != nil {
		return err
	}
	return durable.Rename(link+partial, link)
}

// Selected implements Driver.
func (l *local) Selected() (string, error) {
	to, err := os.Readlink(filepath.Join(l.dir, bootLink))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case !slices.Contains(slots, to):
		return "", fmt.Errorf("%s leads to %q, which is no deployment", filepath.Join(l.dir, bootLink), to)
	}
	return to, nil
}

// Booted implements Driver.
func (l *local) Booted() (string, machineconfig.System, error) {
	if l.booted == "" || l.broken != nil {
		return "", machineconfig.System{}, l.broken
	}
	s, err := l.record(l.booted)
	return l.booted, s, err
}

// Root implements Driver.
func (l *local) Root() string {
	if l.booted == "" {
		return ""
	}
	return filepath.Join(l.path(l.booted), rootDir)
}

func (l *local) path(slot string) string { return filepath.Join(l.dir, slot) }

// record returns what a deployment is.
func (l *local) record(slot string) (machineconfig.System, error) {
	var s machineconfig.System
	data, err := os.ReadFile(filepath.Join(l.path(slot), recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%w: the operating system in %s", ErrMissing, l.path(slot))
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%w: the operating system in %s: %w", ErrMissing, l.path(slot), err)
	}
	return s, nil
}
