package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestWhatALayerUnpacksToIsBounded has small bounds, and layers that go beyond each.
func TestWhatALayerUnpacksToIsBounded(t *testing.T) {
	archive := func(names ...string) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, n := range names {
			if err := w.WriteHeader(&tar.Header{Name: n, Typeflag: tar.TypeReg, Size: 10}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for _, part := range [][]byte{archive("f"), make([]byte, 1<<20)} { // what follows the archive is read for its digest
		if _, err := z.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	bomb, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(names ...string) v1.Layer { return static.NewLayer(archive(names...), types.OCIUncompressedLayer) }
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, tc := range []struct {
		name, want string
		layer      v1.Layer
	}{
		{"what fits is unpacked", "", plain(many[:100]...)},
		{"one file too many", "more than 1000000 files", plain(many...)},
		{"directories that no entry makes", "more than 1000000 files", plain(strings.Repeat("d/", 100) + "f")},
		{"too many bytes", "more than 8589934592 bytes", plain(many[:100]...)},
		{"a bomb beside the files", "more than 8589934592 bytes", bomb},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, err := os.OpenRoot(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			u := unpacking{ctx: t.Context(), root: root, left: 1000, packed: 200 << 10, entries: 100, seed: maphash.MakeSeed()}
			if tc.name == "too many bytes" {
				u.left = 999
			}
			diffID, err := tc.layer.DiffID()
			if err != nil {
				t.Fatal(err)
			}
			err = u.layer(0, tc.layer, diffID)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("layer = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestALayerCountsAsOftenAsAnImageHasIt has one that is small enough, nine times.
func TestALayerCountsAsOftenAsAnImageHasIt(t *testing.T) {
	s := &Source{layers: map[string]int{"once": 1, "often": 9}, weighed: map[string]weight{}}
	for range 3 { // a runtime may read it again
		if err := s.add("once", weight{files: 1 << 30}); err != nil {
			t.Error(err)
		}
	}
	if err := s.add("often", weight{files: 1 << 30}); err == nil {
		t.Error("10 GiB were accepted")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"registries: {docker.io: {mirrors: [https://m.example.com/hub, 'http://127.0.0.1:5000', 'http://[::1]:5000']}}", ""},
		{"registries: {docker.io: {mirrors: [http://m.example.com]}}", "http is for loopback addresses only"},
		{"registries: {docker.io: {mirrors: [m.example.com]}}", "must be a URL"},
		{"registries: {docker.io: {mirrors: ['https://u:p@m.example.com']}}", "must be a URL"},
		{"registries: {docker.io: {mirrorsOnly: true}}", "there are no mirrors"},
		{"registries: {docker.io: {mirror: https://m.example.com}}", "unknown field"},
		{"registries: {docker.io/library: {}}", "must be a host"},
		{
			"signatures: [{images: docker.io/team, keyRings: [/a.asc], stores: ['https://a', 'file:///b', 'http://127.0.0.1']}]",
			"",
		},
		{"signatures: [{images: '*', keyRings: [/a.asc], stores: ['file:///b']}]", ""},
		{"signatures: [{images: docker.io/, keyRings: [/a.asc], stores: ['file:///b']}]", "signatures[0].images: "},
		{"signatures: [{images: 'docker.io/*', keyRings: [/a.asc], stores: ['file:///b']}]", "signatures[0].images: "},
		{"signatures: [{images: a, stores: ['file:///b']}]", "signatures[0].keyRings: "},
		{"signatures: [{images: a, keyRings: [a.asc], stores: ['file:///b']}]", "signatures[0].keyRings[0]: "},
		{"signatures: [{images: a, keyRings: [/a.asc]}]", "signatures[0].stores: "},
		{"signatures: [{images: a, keyRings: [/a.asc], stores: ['http://example.com']}]", "signatures[0].stores[0]: "},
	} {
		file := t.TempDir() + "/registries.yaml"
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readSettings(file+".none", file)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.text, err, tc.want)
		}
	}
}
