package release

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
)

// stored writes a file.
func stored(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// executableOf reads the executable of an image in a layout.
func executableOf(t *testing.T, dir, digest string) (string, error) {
	t.Helper()
	image, err := Open(t.Context(), "windlass@"+digest, Places{Layouts: []string{dir}})
	if err != nil {
		return "", err
	}
	path := stored(t, "what was there before, and is longer than that")
	f := must(os.OpenFile(path, os.O_WRONLY, 0))
	defer f.Close()
	if err := image.Executable(f); err != nil {
		return "", err
	}
	return string(must(os.ReadFile(path))), nil
}

func TestAnExecutableComesBackFromItsImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	one, err := NewExecutable(dir, map[string]string{runtime.GOARCH: stored(t, "an executable")})
	check(t, err)
	again, err := NewExecutable(dir, map[string]string{runtime.GOARCH: stored(t, "an executable")})
	check(t, err)
	if one != again {
		t.Errorf("the same file gives %s and %s", one, again)
	}
	several, err := NewExecutable(dir, map[string]string{runtime.GOARCH: stored(t, "mine"), "s390x": stored(t, "another")})
	check(t, err)
	for digest, want := range map[string]string{one: "an executable", several: "mine"} {
		if got, err := executableOf(t, dir, digest); got != want || err != nil {
			t.Errorf("executable of %s: %q, %v; want %q", digest, got, err, want)
		}
	}
	foreign, err := NewExecutable(dir, map[string]string{"s390x": stored(t, "another"), "ppc64le": stored(t, "a third")})
	check(t, err)
	if _, err := executableOf(t, dir, foreign); !errors.Is(err, ErrUnfit) {
		t.Errorf("an index without an image for this machine: %v", err)
	}
	blob := filepath.Join(dir, "blobs", "sha256")
	for _, f := range must(os.ReadDir(blob)) {
		path := filepath.Join(blob, f.Name())
		if raw := must(os.ReadFile(path)); len(raw) > 2 && raw[0] == 0x1f {
			raw[len(raw)-1] ^= 1
			check(t, os.WriteFile(path, raw, 0o600))
		}
	}
	if got, err := executableOf(t, dir, one); err == nil {
		t.Errorf("a layer that was changed gives %q", got)
	}
}

func TestLayersReplaceAnExecutable(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]put
		want   string // empty: there is none
	}{
		"the later one counts": {
			[][]put{{{name: "windlass", content: "old and long"}}, {{name: "./windlass", content: "new"}}}, "new",
		},
		"it is taken away": {[][]put{{{name: "windlass", content: "old"}}, {{name: ".wh.windlass"}}}, ""},
		"it is replaced and the rest is taken away": {
			[][]put{{{name: "windlass", content: "old"}}, {{name: "windlass", content: "new"}, {name: ".wh..wh..opq"}}}, "new",
		},
		"others stay": {
			[][]put{{{name: "windlass", content: "old"}}, {{name: "bin/windlass", content: "other"}}}, "old",
		},
		"there is none": {[][]put{{{name: "bin/windlass", content: "other"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			image := imageOf(t, c.layers...)
			to := must(layout.Write(dir, empty.Index))
			digest := must(image.Digest())
			check(t, to.ReplaceImage(image, match.Digests(digest)))
			got, err := executableOf(t, dir, digest.String())
			if got != c.want || (c.want == "") != errors.Is(err, ErrUnfit) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestAnExecutableSaysItsVersion(t *testing.T) {
	for name, c := range map[string]struct {
		script, version string
		unfit           bool
	}{
		"a version":     {"#!/bin/sh\necho '{\"version\": \"1.2.3\"}'", "1.2.3", false},
		"no version":    {"#!/bin/sh\necho hello", "", true},
		"it fails":      {"#!/bin/sh\nexit 3", "", true},
		"it is killed":  {"#!/bin/sh\nkill -9 $$", "", false},
		"no executable": {"text", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := stored(t, c.script)
			check(t, os.Chmod(path, 0o700)) //nolint:gosec // it is to be run
			version, err := ExecutableVersion(t.Context(), path)
			if version != c.version || errors.Is(err, ErrUnfit) != c.unfit || (c.version == "") != (err != nil) {
				t.Errorf("%q, %v", version, err)
			}
		})
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := ExecutableVersion(ended, stored(t, "")); errors.Is(err, ErrUnfit) || err == nil {
		t.Errorf("asked in vain: %v", err)
	}
}
