package hostconfig

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// What a configuration replaced or removed comes back with its owner, its mode and its attributes.
func TestOwnersAndAttributesComeBack(t *testing.T) {
	dir := t.TempDir()
	tr, err := openTree(filepath.Join(dir, "root"), filepath.Join(dir, "kept"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.root.Close()
	at := func(p string) string { return filepath.Join(dir, "root", p) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at("d"), 0o750))
	must(os.WriteFile(at("f"), []byte("one"), 0o600))
	must(os.Symlink("f", at("l")))
	if os.Geteuid() == 0 {
		for i, p := range []string{"d", "f", "l"} {
			must(os.Lchown(at(p), 1234+i, 5678+i))
		}
	}
	must(os.Chmod(at("f"), 0o711|fs.ModeSetuid))
	must(os.Chmod(at("d"), 0o751|fs.ModeSetgid))
	for _, p := range []string{"d", "f"} {
		err := unix.Setxattr(at(p), "user.note", []byte(p+"\x00"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			t.Logf("attributes are left out: the file system of %s has none", dir)
			break
		}
		must(err)
	}
	var was []saved
	for _, p := range []string{"d", "f", "l"} {
		s, err := tr.look(p)
		must(err)
		must(tr.preserve(s))
		raw, err := json.Marshal(s) // as in the records
		must(err)
		var read saved
		must(json.Unmarshal(raw, &read))
		if !reflect.DeepEqual(s, read) {
			t.Errorf("%+v is recorded as %+v", s, read)
		}
		was = append(was, read)
	}
	changes := map[string]func(p string) error{
		"replaced": func(p string) error {
			if p == "d" {
				return tr.put(entry{path: p, kind: directory, mode: 0o700})
			}
			return tr.put(entry{path: p, kind: file, mode: 0o644, content: []byte("two")})
		},
		"gone": func(p string) error { return tr.root.Remove(p) },
		"another kind": func(p string) error {
			if err := tr.root.Remove(p); err != nil {
				return err
			}
			return tr.put(entry{path: p, kind: link, target: "elsewhere"})
		},
	}
	for what, change := range changes {
		for _, s := range was {
			must(change(s.Path))
			must(tr.restore(s))
			if is, err := tr.look(s.Path); err != nil || !reflect.DeepEqual(is, s) {
				t.Errorf("%s was %s, and came back as %+v, %v, want %+v", s.Path, what, is, err, s)
			}
		}
	}
}

// An attribute that a directory hands down does not stay with what comes back without it.
func TestNoAttributeIsAddedToWhatComesBack(t *testing.T) {
	dir := t.TempDir()
	tr, err := openTree(filepath.Join(dir, "root"), filepath.Join(dir, "kept"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.root.Close()
	name := filepath.Join(dir, "root", "f")
	if err := os.WriteFile(name, []byte("one"), 0o640); err != nil {
		t.Fatal(err)
	}
	was, err := tr.look("f")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.preserve(was); err != nil {
		t.Fatal(err)
	}
	// A default access list: the owner all, user 77 all, the group and others nothing, at most all.
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][3]uint32{
		{1, 7, 0xffffffff},
		{2, 7, 77},
		{4, 0, 0xffffffff},
		{16, 7, 0xffffffff},
		{32, 0, 0xffffffff},
	} {
		acl = append(acl, byte(e[0]), 0, byte(e[1]), 0, byte(e[2]), byte(e[2]>>8), byte(e[2]>>16), byte(e[2]>>24))
	}
	if err := unix.Setxattr(filepath.Dir(name), "system.posix_acl_default", acl, 0); err != nil {
		t.Skipf("the file system of %s has no access lists: %v", dir, err)
	}
	if err := tr.put(entry{path: "f", kind: file, mode: 0o600, content: []byte("two")}); err != nil {
		t.Fatal(err)
	}
	if err := tr.restore(was); err != nil {
		t.Fatal(err)
	}
	if is, err := tr.look("f"); err != nil || !reflect.DeepEqual(is, was) {
		t.Errorf("it came back as %+v, %v, want %+v", is, err, was)
	}
}

// Records of earlier versions know no owner: what comes back has that of node-agent, as before.
func TestARecordWithoutTraitsComesBack(t *testing.T) {
	dir := t.TempDir()
	tr, err := openTree(filepath.Join(dir, "root"), filepath.Join(dir, "kept"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.root.Close()
	if err := tr.put(entry{path: "f", kind: file, mode: 0o640, content: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	was, err := tr.look("f")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.preserve(was); err != nil {
		t.Fatal(err)
	}
	old := saved{Path: was.Path, Kind: was.Kind, Mode: was.Mode, Sum: was.Sum}
	if err := errors.Join(tr.root.Remove("f"), tr.restore(old)); err != nil {
		t.Fatal(err)
	}
	if is, err := tr.look("f"); err != nil || !reflect.DeepEqual(is, was) {
		t.Errorf("it came back as %+v, %v, want %+v", is, err, was)
	}
}
