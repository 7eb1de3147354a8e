package pods

import (
	"archive/tar"
	"bytes"
	"net"
	"testing"
)

type file struct {
	name, content string
	mode          int64
	link          string // where it leads; empty: it is no link
}

// archive returns a layer.
func archive(t *testing.T, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if f.mode == 0 {
			f.mode = 0o644
		}
		kind := byte(tar.TypeReg)
		if f.link != "" {
			kind = tar.TypeSymlink
		}
		if err := w.WriteHeader(&tar.Header{
			Name: f.name, Typeflag: kind, Size: int64(len(f.content)), Mode: f.mode, Linkname: f.link,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
