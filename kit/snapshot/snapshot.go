// Package snapshot checks, stores and restores snapshots of etcd's database. A snapshot counts as complete only after
// its file was checked and written to disk: its description, a second file beside it, is written last.
package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/windlass-dev/windlass/kit/durable"
)

const (
	fileSuffix    = ".db"
	infoSuffix    = ".json"
	keysSuffix    = ".keys.age"
	partialSuffix = ".partial" // of a file that is being written

	sector = 512 // bytes: etcd's database is a multiple of it, and a snapshot ends with a hash after that
)

// ErrBroken means that a file is not a whole snapshot as etcd wrote it.
var ErrBroken = errors.New("not a complete snapshot")

// Info describes a snapshot that was checked.
type Info struct {
	Name        string    `json:"name"`
	Time        time.Time `json:"time"`             // when it was taken
	VerifyTime  time.Time `json:"verifyTime"`       // when its file was checked
	SizeBytes   int64     `json:"sizeBytes,string"` // of the file
	Revision    int64     `json:"revision,string"`  // the newest in it
	Keys        int       `json:"keys"`             // that exist at that revision
	Hash        string    `json:"hash"`             // of the database, as "etcdutl snapshot status" prints it
	SHA256      string    `json:"sha256"`           // of the database, as etcd appended it to the file
	EtcdVersion string    `json:"etcdVersion,omitempty"`
	ClusterID   string    `json:"clusterID,omitempty"`
	Member      string    `json:"member,omitempty"` // that it was taken from
	// SealedKeys describes the keys of the control plane beside it; nil: there are none.
	SealedKeys *SealedKeys `json:"sealedKeys,omitempty"`
}

// SealedKeys describes the encrypted keys of a control plane beside a snapshot, with which it can be restored on hosts
// that have none (package hostbundle).
type SealedKeys struct {
	Recipients []string `json:"recipients"` // who can open them
	SizeBytes  int64    `json:"sizeBytes,string"`
	SHA256     string   `json:"sha256"`
}

// Keys are encrypted keys and who can open them.
type Keys struct {
	Sealed     []byte
	Recipients []string
}

// describe returns the description of keys; nil of none.
func (k *Keys) describe() *SealedKeys {
	if k == nil {
		return nil
	}
	sum := sha256.Sum256(k.Sealed)
	return &SealedKeys{Recipients: k.Recipients, SizeBytes: int64(len(k.Sealed)), SHA256: hex.EncodeToString(sum[:])}
}

// check returns an error unless sealed are the keys that are described.
func (k *SealedKeys) check(name string, sealed []byte) error {
	if sum := sha256.Sum256(sealed); hex.EncodeToString(sum[:]) != k.SHA256 {
		return fmt.Errorf("%w: the keys beside %s are not those that were stored", ErrBroken, name)
	}
	return nil
}

// Verify reads the whole snapshot in a file: it compares the hash that etcd appended, and opens the database and checks
// its pages and keys. The error wraps ErrBroken if it is not what etcd wrote.
func Verify(path string) (Info, error) {
	size, sum, err := checksum(path)
	if err != nil {
		return Info{}, err
	}
	info, err := inspect(path)
	info.SizeBytes, info.SHA256 = size, hex.EncodeToString(sum)
	return info, err
}

// inspect opens the database in a file and checks it, with or without the hash at its end.
func inspect(path string) (Info, error) {
	s, err := snapshot.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrBroken, filepath.Base(path), err)
	}
	bumped, err := wasBumped(path)
	if err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrBroken, filepath.Base(path), err)
	}
	keys := s.TotalKey
	if bumped {
		keys--
	}
	return Info{
		SizeBytes: s.TotalSize, Revision: s.Revision, Keys: keys, Hash: fmt.Sprintf("%08x", s.Hash),
		EtcdVersion: s.Version, VerifyTime: time.Now().UTC().Truncate(time.Second),
	}, nil
}

// wasBumped reports whether a database was restored with a later revision and not compacted since: that is marked by a
// revision without a key, which etcd counts as one.
func wasBumped(path string) (bool, error) {
	db, err := bolt.Open(path, 0o400, &bolt.Options{ReadOnly: true})
	if err != nil {
		return false, err
	}
	defer db.Close()
	found := false
	err = db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(keyBucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, v []byte) error {
			found = found || len(v) == 0
			return nil
		})
	})
	return found, err
}

// keyBucket is the part of etcd's database with the keys, by revision.
const keyBucket = "key"

// checksum returns the size of a snapshot and the hash at its end, which is that of what precedes it.
func checksum(path string) (int64, []byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return 0, nil, err
	}
	size := stat.Size()
	if size <= sha256.Size || size%sector != sha256.Size {
		return 0, nil, fmt.Errorf("%w: %s has %d bytes, which do not end with a hash", ErrBroken, filepath.Base(path), size)
	}
	h := sha256.New()
	if _, err := io.CopyN(h, f, size-sha256.Size); err != nil {
		return 0, nil, err
	}
	sum := make([]byte, sha256.Size)
	if _, err := io.ReadFull(f, sum); err != nil {
		return 0, nil, err
	}
	if !bytes.Equal(sum, h.Sum(nil)) {
		return 0, nil, fmt.Errorf("%w: %s does not have the hash at its end", ErrBroken, filepath.Base(path))
	}
	return size, sum, nil
}

// Directory holds snapshots, each as NAME.db and NAME.json, and NAME.keys.age if there are keys. Only one process may
// write to it at a time.
type Directory struct{ path string }

// NewDirectory returns the snapshots in a directory, which need not exist yet.
func NewDirectory(path string) Directory { return Directory{path} }

// File returns the path of a snapshot's database.
func (d Directory) File(name string) string { return filepath.Join(d.path, name+fileSuffix) }

// KeysFile returns the path of the encrypted keys beside a snapshot.
func (d Directory) KeysFile(name string) string { return filepath.Join(d.path, name+keysSuffix) }

// KeysOf returns the path of the encrypted keys beside a snapshot's file.
func KeysOf(file string) string { return strings.TrimSuffix(file, fileSuffix) + keysSuffix }

// info returns the path of a snapshot's description.
func (d Directory) info(name string) string { return filepath.Join(d.path, name+infoSuffix) }

// Info returns the description of a complete snapshot. The error wraps fs.ErrNotExist if there is none of that name,
// and ErrBroken if the description cannot be read or is not that of the file.
func (d Directory) Info(name string) (Info, error) {
	info, err := d.described(name)
	if err == nil && info.SealedKeys != nil {
		_, err = d.Keys(info)
	}
	return info, err
}

// described is Info without the keys beside the snapshot.
func (d Directory) described(name string) (Info, error) {
	info, err := readInfo(d.info(name))
	if err != nil {
		return Info{}, err
	}
	stat, err := os.Lstat(d.File(name))
	if err == nil && !stat.Mode().IsRegular() {
		return info, notRegular(d.File(name))
	}
	if err == nil && stat.Size() != info.SizeBytes {
		err = fmt.Errorf("%w: %s has %d bytes, and had %d when it was checked", ErrBroken, d.File(name), stat.Size(),
			info.SizeBytes)
	}
	return info, err
}

// Keys returns the encrypted keys beside a snapshot. The error wraps ErrBroken if they are not those that its
// description names.
func (d Directory) Keys(info Info) ([]byte, error) {
	if info.SealedKeys == nil {
		return nil, fmt.Errorf("snapshot %s has no keys beside it", info.Name)
	}
	stat, err := os.Lstat(d.KeysFile(info.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is gone", ErrBroken, d.KeysFile(info.Name))
	}
	if err == nil && (!stat.Mode().IsRegular() || stat.Size() != info.SealedKeys.SizeBytes) {
		err = fmt.Errorf("%w: %s is not the file that was written", ErrBroken, d.KeysFile(info.Name))
	}
	if err != nil {
		return nil, err
	}
	sealed, err := os.ReadFile(d.KeysFile(info.Name))
	if err != nil {
		return nil, err
	}
	return sealed, info.SealedKeys.check(info.Name, sealed)
}

// Write stores what fetch writes as the snapshot that info names, with keys beside it unless they are nil, and returns
// info with what was found in it. If fetch, the disk or the check fails, nothing is left of it. Parts of earlier
// snapshots that were cut off are removed first. The error wraps fs.ErrExist if there is a complete snapshot of that
// name, which stays as it is.
func (d Directory) Write(ctx context.Context, info Info, keys *Keys, fetch func(context.Context, io.Writer) error,
) (Info, error) {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return Info{}, err
	}
	if had, err := d.described(info.Name); err == nil { // also if its keys are gone
		return Info{}, exists(had)
	}
	if err := d.clean(); err != nil {
		return Info{}, err
	}
	partial := d.File(info.Name) + partialSuffix
	found, err := fill(ctx, partial, fetch)
	if err == nil {
		err = d.undescribe(info.Name) // that of an earlier file
	}
	if err == nil {
		err = os.Rename(partial, d.File(info.Name))
	}
	if err != nil {
		return Info{}, errors.Join(err, removeFile(partial))
	}
	found.Name, found.Time, found.ClusterID, found.Member = info.Name, info.Time, info.ClusterID, info.Member
	found.SealedKeys = keys.describe()
	if keys != nil {
		err = durable.WriteFile(d.KeysFile(info.Name), keys.Sealed, 0o600)
		if err == nil {
			_, err = d.Keys(found)
		}
	}
	if err == nil {
		err = d.describe(found)
	}
	if err != nil {
		return Info{}, errors.Join(err, d.Remove(info.Name))
	}
	return found, nil
}

// exists is the error about a snapshot that is there already.
func exists(had Info) error {
	return fmt.Errorf("%w: snapshot %s of %s is complete; remove it or use another name", fs.ErrExist, had.Name,
		had.Time.Format(time.RFC3339))
}

// fill writes a file, has it on disk, and checks it.
func fill(ctx context.Context, path string, fetch func(context.Context, io.Writer) error) (Info, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return Info{}, err
	}
	err = fetch(ctx, f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return Info{}, err
	}
	return Verify(path)
}

// describe writes the description by which a snapshot counts as complete. It also has the directory on disk.
func (d Directory) describe(info Info) error {
	b, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(d.info(info.Name), append(b, '\n'), 0o600)
}

// clean removes what was left by a process that ended while it wrote.
func (d Directory) clean() error {
	left, err := filepath.Glob(filepath.Join(d.path, "*"+partialSuffix))
	if err != nil {
		return err
	}
	for _, path := range left {
		err = errors.Join(err, removeFile(path))
	}
	return err
}

// List returns the complete snapshots, oldest first. A directory that does not exist has none. The error says which
// descriptions cannot be read or are not those of their files; the list is that of the others.
func (d Directory) List() ([]Info, error) {
	paths, err := filepath.Glob(filepath.Join(d.path, "*"+infoSuffix))
	if err != nil {
		return nil, err
	}
	var out []Info
	var failed []error
	for _, path := range paths {
		info, err := d.Info(strings.TrimSuffix(filepath.Base(path), infoSuffix))
		switch {
		case err == nil:
			out = append(out, info)
		case !errors.Is(err, fs.ErrNotExist): // one whose file was removed is none
			failed = append(failed, err)
		}
	}
	sortInfos(out)
	return out, errors.Join(failed...)
}

func readInfo(path string) (Info, error) {
	stat, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	if !stat.Mode().IsRegular() {
		return Info{}, notRegular(path) // reading a device or a pipe may never end
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Info{}, err
	}
	var info Info
	if err := json.Unmarshal(b, &info); err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrBroken, path, err)
	}
	if info.Name != strings.TrimSuffix(filepath.Base(path), infoSuffix) {
		return Info{}, fmt.Errorf("%w: %s describes snapshot %q", ErrBroken, path, info.Name)
	}
	return info, nil
}

func notRegular(path string) error {
	return fmt.Errorf("%w: %s is not a regular file", ErrBroken, path)
}

func sortInfos(list []Info) {
	slices.SortFunc(list, func(a, b Info) int {
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Remove deletes a snapshot, its description first; one that does not exist is no error.
func (d Directory) Remove(name string) error {
	if err := d.undescribe(name); err != nil {
		return err
	}
	return errors.Join(removeFile(d.KeysFile(name)), removeFile(d.File(name)))
}

// Discard removes what a process left that ended while it wrote a snapshot. A complete one stays.
func (d Directory) Discard(name string) error {
	err := removeFile(d.File(name) + partialSuffix)
	switch _, failed := os.Stat(d.info(name)); {
	case errors.Is(failed, fs.ErrNotExist):
		err = errors.Join(err, removeFile(d.KeysFile(name)), removeFile(d.File(name)))
	case failed != nil:
		err = errors.Join(err, failed)
	}
	return err
}

func (d Directory) undescribe(name string) error {
	if err := durable.Remove(d.info(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
