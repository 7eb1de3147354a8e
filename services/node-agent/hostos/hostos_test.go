package hostos_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/services/node-agent/hostos"
	"github.com/windlass-dev/windlass/services/node-agent/image"
)

// machine is a disk with operating systems, and a place with images.
type machine struct {
	t           *testing.T
	dir, images string
	library     *image.Library
	unpacked    int // images so far
	before      func(dir string) error
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "os"), images: t.TempDir()}
	var err error
	m.library, err = image.NewLibrary(image.LibraryConfig{
		Dir: t.TempDir(), Layouts: []string{m.images}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) boot(id string) hostos.Driver {
	return hostos.Local(m.dir, id, func(ctx context.Context, ref, dir string) error {
		m.unpacked++
		if m.before != nil {
			if err := m.before(dir); err != nil {
				return err
			}
		}
		return m.library.Unpack(ctx, ref, dir)
	})
}

// image makes an image with files, and with links where a content is an arrow and a target, and returns its reference.
func (m *machine) image(name string, files map[string]string) string {
	m.t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[path]))}
		if target, link := strings.CutPrefix(files[path], "-> "); link {
			h = &tar.Header{Name: path, Typeflag: tar.TypeSymlink, Linkname: target}
		}
		if err := w.WriteHeader(h); err != nil {
			m.t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			continue
		}
		if _, err := w.Write([]byte(files[path])); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		m.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(out.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		m.t.Fatal(err)
	}
	digest := m.write(name, img)
	return "example.com/" + name + "@" + digest.String()
}

func (m *machine) write(name string, img v1.Image) v1.Hash {
	m.t.Helper()
	path := filepath.Join(m.images, "example.com", name)
	p, err := layout.FromPath(path)
	if err != nil {
		if p, err = layout.Write(path, empty.Index); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := p.AppendImage(img); err != nil {
		m.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		m.t.Fatal(err)
	}
	return digest
}

// runs checks which system a boot runs, by a file of it.
func (m *machine) runs(d hostos.Driver, want machineconfig.System, version string) {
	m.t.Helper()
	_, s, err := d.Booted()
	if err != nil || !s.Equal(want) {
		m.t.Errorf("the boot runs %v, %v, want %v", s, err, want)
	}
	text := ""
	if d.Root() != "" {
		data, err := os.ReadFile(filepath.Join(d.Root(), "etc/version"))
		if err != nil {
			m.t.Error(err)
		}
		text = string(data)
	}
	if text != version {
		m.t.Errorf("the version of the system is %q, want %q", text, version)
	}
}

func (m *machine) stage(d hostos.Driver, s machineconfig.System) string {
	m.t.Helper()
	deployment, err := d.Stage(m.t.Context(), s)
	if err != nil {
		m.t.Fatal(err)
	}
	return deployment
}

func TestTheNextBootRunsWhatIsSelected(t *testing.T) {
	m := newMachine(t)
	one := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "1"})}
	two := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "2"})}
	three := machineconfig.System{
		Image: m.image("os", map[string]string{"etc/version": "3"}), KernelArguments: []string{"quiet", `a="b c"`},
	}
	d := m.boot("boot-1")
	m.runs(d, machineconfig.System{}, "")
	to := m.stage(d, one)
	m.runs(d, machineconfig.System{}, "")
	if err := d.Select(to); err != nil {
		t.Fatal(err)
	}
	m.runs(d, machineconfig.System{}, "")
	m.runs(m.boot("boot-1"), machineconfig.System{}, "") // the agent came back in the same boot
	d = m.boot("boot-2")
	m.runs(d, one, "1")
	if err := d.Select(m.stage(d, two)); err != nil {
		t.Fatal(err)
	}
	m.runs(m.boot("boot-2"), one, "1")
	d = m.boot("boot-3")
	m.runs(d, two, "2")

	// The system before is there still: the way back costs nothing.
	had := m.unpacked
	if err := d.Select(m.stage(d, one)); err != nil {
		t.Fatal(err)
	}
	if m.unpacked != had {
		t.Error("the system before was got once more")
	}
	d = m.boot("boot-4")
	m.runs(d, one, "1")
	if err := d.Select(m.stage(d, three)); err != nil {
		t.Fatal(err)
	}
	d = m.boot("boot-5")
	m.runs(d, three, "3")
	if text, err := os.ReadFile(filepath.Join(m.dir, "boot", "cmdline")); string(text) != "quiet a=\"b c\"\n" {
		t.Errorf("kernel arguments %q, %v", text, err)
	}
	if err := d.Select(m.stage(d, machineconfig.System{})); err != nil {
		t.Fatal(err)
	}
	m.runs(m.boot("boot-6"), machineconfig.System{}, "")
}

func TestExtensionsAreAddedToTheSystem(t *testing.T) {
	m := newMachine(t)
	extensions := m.image("extensions", map[string]string{
		"extensions/usbguard/usr/bin/usbguard": "usbguard", "extensions/usbguard/etc/usbguard/rules": "rules",
		"extensions/other/etc/version": "another",
	})
	s := machineconfig.System{
		Image:           m.image("os", map[string]string{"etc/version": "1", "usr/bin/sh": "sh"}),
		ExtensionsImage: extensions, Extensions: []string{"usbguard"},
	}
	d := m.boot("boot-1")
	if err := d.Select(m.stage(d, s)); err != nil {
		t.Fatal(err)
	}
	d = m.boot("boot-2")
	m.runs(d, s, "1")
	for path, want := range map[string]string{
		"usr/bin/usbguard": "usbguard", "usr/bin/sh": "sh", "etc/usbguard/rules": "rules",
	} {
		if text, err := os.ReadFile(filepath.Join(d.Root(), path)); string(text) != want {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	for name, want := range map[string]string{
		"other":   "extension other of " + extensions + ": /etc/version is in the system already",
		"missing": "the image has no directory /extensions/missing",
	} {
		s.Extensions = []string{name}
		if _, err := d.Stage(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("extension %s: %v", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(m.dir, "*.new")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	m.runs(m.boot("boot-2"), machineconfig.System{Image: s.Image, ExtensionsImage: extensions, Extensions: []string{
		"usbguard",
	}}, "1")
}

// An image of extensions that leads elsewhere takes nothing from there, and its links lead into the system.
func TestLinksOfExtensionsStayInTheSystem(t *testing.T) {
	m := newMachine(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "1"}), Extensions: []string{"x"}}
	s.ExtensionsImage = m.image("links", map[string]string{
		"extensions/x/usr/bin/tool": "-> /usr/lib/tool", "extensions/x/usr/lib/tool": "tool",
		"extensions/x/usr/lib/other": "-> tool", "extensions/x/version": "-> /etc/version",
		"extensions/y": "-> " + outside, "z": "file",
	})
	d := m.boot("boot-1")
	if err := d.Select(m.stage(d, s)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(m.boot("boot-2").Root())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for path, want := range map[string]string{"usr/bin/tool": "tool", "usr/lib/other": "tool", "version": "1"} {
		if text, err := root.ReadFile(path); string(text) != want {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	s.Extensions = []string{"y"}
	if _, err := d.Stage(t.Context(), s); !errors.Is(err, hostos.ErrMissing) {
		t.Errorf("an extension that is a link: %v", err)
	}
	up, err := filepath.Rel(filepath.Join(m.dir, "a.new", "extensions"), outside)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(outside, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(outside, "secret"), filepath.Join(outside, "x/secret")); err != nil {
		t.Fatal(err)
	}
	s.Extensions, s.ExtensionsImage = []string{"x"}, m.image("away", map[string]string{"extensions": "-> " + up})
	if _, err := d.Stage(t.Context(), s); err == nil {
		t.Error("a directory of extensions that is a link is followed")
	}
	if _, err := os.Stat(filepath.Join(outside, "x/secret")); err != nil {
		t.Error(err)
	}
}

// The way back stays until the next system is there.
func TestAnImageThatDoesNotComeReplacesNothing(t *testing.T) {
	m := newMachine(t)
	one := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "1"})}
	two := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "2"})}
	d := m.boot("boot-1")
	if err := d.Select(m.stage(d, one)); err != nil {
		t.Fatal(err)
	}
	d = m.boot("boot-2")
	if err := d.Select(m.stage(d, two)); err != nil {
		t.Fatal(err)
	}
	d = m.boot("boot-3")
	if _,
		err := d.Stage(t.Context(), machineconfig.System{
		Image: "example.com/none@sha256:" + strings.Repeat("0", 64),
	}); err == nil {
		t.Fatal("an image that is nowhere is staged")
	}
	if _, found := d.Find(one); !found {
		t.Error("the system before is gone")
	}
	if _, found := d.Find(two); !found {
		t.Error("the system that runs is gone")
	}
}

// On a disk that has no room for three systems the one before goes first.
func TestTheSystemBeforeGoesFirstOnASmallDisk(t *testing.T) {
	m := newMachine(t)
	d := m.boot("boot-1")
	for i, version := range []string{"1", "2", "3"} {
		s := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": version})}
		m.before = func(string) error {
			if used, _ := filepath.Glob(filepath.Join(m.dir, "[ab]", "root")); len(used) > 1 {
				return fmt.Errorf("the image is not written: %w", syscall.ENOSPC)
			}
			return nil
		}
		if err := d.Select(m.stage(d, s)); err != nil {
			t.Fatal(err)
		}
		d = m.boot(fmt.Sprint("boot-", i+2))
		m.runs(d, s, version)
	}
}

// A deployment is one only when it is complete, whenever the agent ended.
func TestHalfOfASystemIsNone(t *testing.T) {
	m := newMachine(t)
	one := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "1"})}
	two := machineconfig.System{Image: m.image("os", map[string]string{"etc/version": "2"})}
	d := m.boot("boot-1")
	full := errors.New("disk is full")
	m.before = func(dir string) error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return full
	}
	if _, err := d.Stage(t.Context(), one); !errors.Is(err, full) {
		t.Fatal(err)
	}
	m.before = nil
	a := m.stage(d, one)
	m.runs(d, machineconfig.System{}, "")
	if err := d.Select(a); err != nil {
		t.Fatal(err)
	}
	d = m.boot("boot-2")
	b := m.stage(d, two)
	if a == b {
		t.Fatalf("the system that runs was replaced")
	}
	if err := os.Remove(filepath.Join(m.dir, b, "deployment.json")); err != nil { // as a kill in the middle leaves it
		t.Fatal(err)
	}
	if err := d.Select(b); !errors.Is(err, hostos.ErrMissing) {
		t.Errorf("select what is not whole: %v", err)
	}
	m.runs(m.boot("boot-3"), one, "1")
	if b = m.stage(d, two); d.Select(b) != nil {
		t.Error("it is not made again")
	}
	if err := os.RemoveAll(filepath.Join(m.dir, b)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.boot("boot-4").Booted(); !errors.Is(err, hostos.ErrMissing) {
		t.Errorf("the system that should run is gone: %v", err)
	}
}

func TestALinkThatLeadsElsewhereIsAnError(t *testing.T) {
	m := newMachine(t)
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../etc", filepath.Join(m.dir, "boot")); err != nil {
		t.Fatal(err)
	}
	d := m.boot("boot-1")
	if _, _, err := d.Booted(); err == nil || d.Root() != "" {
		t.Errorf("it runs %q, %v", d.Root(), err)
	}
	if _, err := d.Stage(t.Context(), machineconfig.System{KernelArguments: []string{"quiet"}}); err == nil {
		t.Error("a system is staged")
	}
}
