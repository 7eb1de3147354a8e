package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/node-agent/image"
)

// FuzzLayout holds that unpacking an image writes nothing outside its directory and leaves no file behind that may run
// as another user.
func FuzzLayout(f *testing.F) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, h := range []tar.Header{
		{Name: "bin/a", Typeflag: tar.TypeReg, Mode: 0o4755},
		{Name: "../up", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "out", Linkname: "../..", Typeflag: tar.TypeSymlink},
		{Name: "out/x", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "hard", Linkname: "../../x", Typeflag: tar.TypeLink},
		{Name: "bin/.wh.a", Typeflag: tar.TypeReg},
	} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	const (
		index    = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"MANIFEST"}]}`
		manifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":1,"digest":"CONFIG"},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":1,"digest":"LAYER"}]}`
		config   = `{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/bin/a"],"Env":["A=b"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["LAYER"]}}`
	)
	f.Add(index, manifest, config, files.Bytes())
	f.Add(strings.Replace(index, "image.manifest", "image.index", 1), index, config, files.Bytes())
	f.Add(index, strings.Replace(manifest, "LAYER", "sha256:../../../etc/passwd", 1), config, []byte{})
	f.Add(`{"manifests":[{"digest":"sha256:a"},null]}`, `{"layers":[null]}`, `null`, []byte("x"))
	f.Fuzz(func(t *testing.T, index, manifest, config string, layer []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "images", "x")
		blob := func(content []byte) string {
			sum := sha256.Sum256(content)
			name := hex.EncodeToString(sum[:])
			place(t, filepath.Join(dir, "blobs", "sha256", name), content)
			return "sha256:" + name
		}
		names := strings.NewReplacer("LAYER", blob(layer))
		config = names.Replace(config)
		manifest = strings.ReplaceAll(names.Replace(manifest), "CONFIG", blob([]byte(config)))
		place(t, filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
		place(t, filepath.Join(dir, "index.json"), []byte(strings.ReplaceAll(index, "MANIFEST", blob([]byte(manifest)))))
		i, err := image.NewStore(filepath.Join(top, "images")).Find("x")
		if err != nil {
			return
		}
		work := filepath.Join(top, "work")
		if err := os.Mkdir(work, 0o700); err != nil {
			t.Fatal(err)
		}
		if i.Unpack(t.Context(), filepath.Join(work, "root")) == nil {
			_ = filepath.WalkDir(filepath.Join(work, "root"), func(path string, d os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if info, err := d.Info(); err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 {
					t.Errorf("%s has mode %s", path, info.Mode())
				}
				return nil
			})
		}
		for _, at := range []string{top, work} {
			entries, err := os.ReadDir(at)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != "images" && e.Name() != "work" && e.Name() != "root" && e.Name() != "root.new" {
					t.Errorf("%s was written outside", filepath.Join(at, e.Name()))
				}
			}
		}
	})
}

func place(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
