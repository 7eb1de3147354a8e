// Package durable writes files that must survive a loss of power: the proof that something was done, which a later
// start believes.
package durable

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteFile replaces a file as a whole. When it returns nil, the data and the name are on the disk: the file is synced
// before it gets its name, and its directory after.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	if err := renameio.WriteFile(path, data, perm); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// MkdirAll makes a directory, and those above it that are not there.
func MkdirAll(dir string, perm os.FileMode) error {
	parents := []string{filepath.Dir(dir)}
	for parent := parents[0]; parent != filepath.Dir(parent); parent = filepath.Dir(parent) {
		if _, err := os.Stat(parent); err == nil {
			break
		}
		parents = append(parents, filepath.Dir(parent))
	}
	if err := os.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, parent := range parents {
		if err := syncDir(parent); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file. When it returns nil, that is on the disk. A file that is not there is an error that wraps
// fs.ErrNotExist.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Rename moves a file or directory within a file system. When it returns nil, that is on the disk: the new name before
// the old one is given up.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(to)); err != nil || filepath.Dir(from) == filepath.Dir(to) {
		return err
	}
	return syncDir(filepath.Dir(from))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
