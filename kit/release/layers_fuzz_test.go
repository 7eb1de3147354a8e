package release

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
)

func FuzzArchiveStaysInsideItsFolders(f *testing.F) {
	f.Add(archive(f, heads()))
	f.Add(
		archive(f, []put{{name: "release-manifests/../../x"}, {name: "manifests/l", kind: tar.TypeSymlink, link: "../../x"}}))
	f.Add(archive(f, []put{{name: "manifests/a.yaml", content: object("a")}, {
		name: "manifests/l", kind: tar.TypeLink,
		link: "manifests/a.yaml",
	}, {name: "manifests/.wh.a.yaml"}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr := newTree(limits{entries: maxEntries})
		err := tr.readTar(tar.NewReader(bytes.NewReader(raw)))
		size := 0
		for p, content := range tr.files {
			folder, file, ok := strings.Cut(p, "/")
			if !ok || strings.Contains(file, "/") || file == ".." || folder != folderOwn && folder != folderReleases {
				t.Errorf("path %q: %v", p, err)
			}
			size += len(content)
		}
		if size != tr.size {
			t.Errorf("%d bytes are counted as %d", size, tr.size)
		}
	})
}
