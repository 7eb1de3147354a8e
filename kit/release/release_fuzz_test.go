package release

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// FuzzSignature holds that what a ring takes as a signature states one image alone, and that a ring of another key
// never takes it.
func FuzzSignature(f *testing.F) {
	// A recorded key: those of a worker's own making would be others than those of the seeds.
	ring, stranger := realRing(f, "simple"), realRing(f, "redhat")
	for _, name := range []string{byTestKey, byVendor} {
		raw, err := os.ReadFile(filepath.Join("testdata", "signatures", strings.Replace(name, ":", "=", 1), "signature-1"))
		check(f, err)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
		f.Add(append(bytes.Clone(raw), raw...))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > maxSignature {
			return // no more is read
		}
		if _, err := ring.check(raw, byTestKey, created()); err != nil {
			return
		}
		if _, err := ring.check(raw, byVendor, created()); err == nil {
			t.Fatalf("%x signs every image", raw)
		}
		if _, err := stranger.check(raw, byTestKey, created()); err == nil {
			t.Fatalf("%x is good for every key", raw)
		}
	})
}

// FuzzStatement holds that a text that is taken as a statement about an image has its digest in it, and is about no
// other one.
func FuzzStatement(f *testing.F) {
	f.Add(statementOf(sha, "example.com/release@"+sha, created()))
	f.Add([]byte(`{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":"` + sha +
		`"},"identity":{"docker-reference":"a"}},"optional":null}{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkStatement(raw, sha) == nil && checkStatement(raw, byTestKey) == nil {
			t.Fatalf("%s is about two images", raw)
		}
	})
}

// FuzzRing holds that a ring that is taken has keys.
func FuzzRing(f *testing.F) {
	for _, name := range []string{"simple", "redhat"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "keyrings", name+".txt"))
		check(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if r, err := ReadRing("r", raw); err == nil && len(r.keys) == 0 {
			t.Fatal("an empty ring is taken: it would be satisfied by nothing and look as if it were there")
		}
	})
}

// blobs writes a layout: WORDS in index and manifest are placeholders for the digests of manifest, config and layer, so
// that the fuzzer gets past them.
func blobs(t testing.TB, dir, index, manifest, config string, layer []byte) {
	t.Helper()
	put := func(content []byte) string {
		digest := digestOf(content)
		name := strings.TrimPrefix(digest, "sha256:")
		check(t, os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700))
		check(t, os.WriteFile(filepath.Join(dir, "blobs", "sha256", name), content, 0o600))
		return digest
	}
	config = strings.ReplaceAll(config, "LAYER", put(layer))
	manifest = strings.NewReplacer("CONFIG", put([]byte(config)), "LAYER", put(layer)).Replace(manifest)
	index = strings.ReplaceAll(index, "MANIFEST", put([]byte(manifest)))
	check(t, os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o600))
}

const (
	seedIndex    = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"MANIFEST"}]}`
	seedManifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":1,"digest":"CONFIG"},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":1,"digest":"LAYER"}]}`
	seedConfig   = `{"created":"2026-01-02T03:04:05Z","architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["LAYER"]}}`
)

// FuzzLayout holds that a release that is taken is the one of its digest, or of an index of that digest, and has only
// files that a release has.
func FuzzLayout(f *testing.F) {
	layer := archive(f, heads())
	f.Add(seedIndex, seedManifest, seedConfig, layer)
	f.Add(strings.Replace(seedIndex, "MANIFEST", "sha256:../../x", 1), seedManifest, seedConfig, layer)
	f.Add(seedIndex, strings.Replace(seedManifest, `"digest":"LAYER"`,
		`"digest":"sha256:aa","urls":["http://127.0.0.1/x"]`, 1), seedConfig, layer)
	// An index: its image's manifest is where a configuration is otherwise, and has the layer as its configuration.
	f.Add(strings.Replace(seedIndex, "image.manifest", "image.index", 1), strings.Replace(strings.Replace(seedIndex,
		"MANIFEST", "CONFIG", 1), `"size"`, `"platform":{"os":"linux","architecture":"`+runtime.GOARCH+`"},"size"`, 1),
		strings.ReplaceAll(strings.Replace(seedManifest, "CONFIG", "LAYER", 1), "layer.v1.tar", "layer.v1.none"),
		[]byte(`{"created":"2026-01-02T03:04:05Z"}`))
	f.Add(`{"manifests":[{},null]}`, `{"layers":null}`, `null`, []byte{})
	f.Add(seedIndex, `[]`, `{"created":"never"}`, []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, index, manifest, config string, layer []byte) {
		dir := t.TempDir()
		blobs(t, dir, index, manifest, config, layer)
		i, err := Open(t.Context(), "oci:"+dir, Places{})
		if err != nil {
			return
		}
		raw, err := i.image.RawManifest()
		check(t, err)
		if is := digestOf(raw); is != i.Digest {
			index, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(i.Digest, "sha256:")))
			check(t, err)
			if digestOf(index) != i.Digest || !bytes.Contains(index, []byte(is)) {
				t.Fatalf("the image %s is another one: %s", i.Digest, is)
			}
		}
		p, err := Load(i)
		if err != nil {
			return
		}
		for _, file := range p.Files {
			if strings.ContainsAny(file.Name, "/\x00") || file.Folder != folderOwn && file.Folder != folderReleases {
				t.Fatalf("file %q of %q", file.Name, file.Folder)
			}
		}
		for _, m := range p.Manifests {
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func digestOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// FuzzManifests holds that every manifest of a release that is taken can be applied: it names a kind and an object.
func FuzzManifests(f *testing.F) {
	for _, seed := range []string{
		"apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\napiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: B, metadata: {name: b, annotations: {release.openshift.io/delete: \"true\"}}}]\n",
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[]},null,1]}`,
		"kind: A\nmetadata: {name: [a]}", "apiVersion: 1\nkind: A\r---\rkind: B",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		list, err := readManifests(File{Folder: folderReleases, Name: "a.yaml", Content: content})
		if err != nil {
			return
		}
		for i, m := range list {
			if err := m.check(); err != nil || m.Document != i {
				t.Fatalf("document %d is %d: %v", i, m.Document, err)
			}
		}
	})
}
