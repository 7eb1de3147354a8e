// Package hostbundle packs what a control-plane host needs that no etcd has: the authorities with their keys, the keys
// that seal records, the policy, the bearer tokens, the releases and the settings. It goes to hosts that join, and into
// backups, encrypted.
package hostbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Settings is the file with the settings of a host, in its directory.
const Settings = "host.json"

// pkiDir is the directory of the authorities, below that of a host.
const pkiDir = "pki"

// How many bytes the files of a bundle may have together.
const (
	ForJoin   = 1000 << 10 // it is kept in etcd, in one record, which may have 1 MiB when it is encrypted
	ForBackup = 64 << 20
)

// Lock keeps others from the authorities of a host until unlock is called. dir is the host's.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(dir, pkiDir), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, pkiDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Pack returns the bundle of the host whose files are in dir, of at most limit bytes before it is compressed. Who has
// it is root of the cluster. A host that lacks something, or whose keys are not those of its authorities, is an error.
func Pack(dir string, limit int) ([]byte, error) {
	unlock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	total, files := 0, map[string][]byte{}
	err = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if name = filepath.ToSlash(name); d.IsDir() && !hasShared(name) {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || name != Settings && !shared(name) {
			return nil
		}
		content, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		if total += len(content); total > limit {
			return fmt.Errorf("the files for another host are larger than %d KiB together, with %s", limit>>10, name)
		}
		files[name] = content
		return nil
	})
	if err == nil {
		err = complete(files)
	}
	if err != nil {
		return nil, err
	}
	return pack(files)
}

func pack(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// hasShared reports whether a directory below a host's, or that itself, may have files of a bundle: the data of pods
// and of etcd is not walked.
func hasShared(name string) bool {
	parts := strings.Split(name, "/")
	return name == "." || parts[0] == pkiDir || parts[0] == "release" ||
		parts[0] == "services" && (len(parts) <= 2 || len(parts) == 3 && parts[2] == "tls")
}

// shared reports whether a file below a host's directory is the same on all control-plane hosts.
func shared(name string) bool {
	parts := strings.Split(name, "/")
	switch parts[0] {
	case "policy.yaml":
		return len(parts) == 1
	case pkiDir:
		// The rest is of this host: the lock, and the audit log of what was issued here.
		return len(parts) == 2 && (slices.Contains([]string{".crt", ".key", ".json"}, path.Ext(name)) ||
			parts[1] == "record-keys-made")
	case "release":
		return len(parts) > 1
	case "services":
		return name == "services/"+topology.Gateway+"/tokens" ||
			len(parts) == 4 && parts[2] == "tls" && parts[3] == serve.RecordKeysFile
	}
	return false
}

// Unpack returns the files of a bundle by name, the settings of the host that packed it included. One with a name that
// Pack does not write is refused, and so is a bundle without something that a host cannot make itself.
func Unpack(bundle []byte) (map[string][]byte, error) {
	packed, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	files, total := tar.NewReader(packed), 0
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, complete(out)
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || path.Clean(h.Name) != h.Name || !filepath.IsLocal(filepath.FromSlash(h.Name)) ||
			h.Name != Settings && !shared(h.Name) {
			return nil, fmt.Errorf("%q is no file of a host", h.Name)
		}
		content, err := io.ReadAll(io.LimitReader(files, ForBackup+1))
		if err != nil {
			return nil, err
		}
		if total += len(content); total > ForBackup {
			return nil, fmt.Errorf("is larger than %d KiB", ForBackup>>10)
		}
		out[h.Name] = content
	}
}

// complete returns an error unless the files have everything that a host cannot make itself.
func complete(files map[string][]byte) error {
	want := []string{Settings, "policy.yaml"}
	for _, name := range topology.Authorities() {
		want = append(want, pkiDir+"/"+name+"-ca.crt", pkiDir+"/"+name+"-ca.key")
	}
	for _, s := range topology.AllServices() {
		if s.Seals {
			want = append(want, "services/"+s.Name+"/tls/"+serve.RecordKeysFile)
		}
	}
	for _, name := range want {
		if len(files[name]) == 0 {
			return fmt.Errorf("%s is missing", name)
		}
		if path.Ext(name) == ".json" && !json.Valid(files[name]) {
			return fmt.Errorf("%s is no JSON", name)
		}
	}
	for _, name := range topology.Authorities() {
		at := pkiDir + "/" + name + "-ca"
		if _, err := tls.X509KeyPair(files[at+".crt"], files[at+".key"]); err != nil {
			return fmt.Errorf("%s.key: is not the key of %[1]s.crt: %w", at, err)
		}
	}
	return nil
}
