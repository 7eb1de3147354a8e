package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/command"
)

func TestTheAdministratorGetsACertificateOfTheClusterThatIsThere(t *testing.T) {
	dir := t.TempDir()
	certificates := func() (authority, known, cert []byte) {
		t.Helper()
		var out bytes.Buffer
		if code := command.Run(context.Background(), []string{"container", "certificates", "--dir", dir}, nil, &out, &out); code != 0 {
			t.Fatal(out.String())
		}
		return read(t, dir, "pki", "windlass-ca.crt"), read(t, dir, "admin", "ca.crt"), read(t, dir, "admin", "tls.crt")
	}
	_, _, first := certificates()
	authority, known, again := certificates()
	if !bytes.Equal(first, again) || !bytes.Equal(known, authority) {
		t.Error("the certificate did not stay")
	}
	for _, volume := range []string{"pki", "services", "release"} { // admin is a directory of the host
		if err := os.RemoveAll(filepath.Join(dir, volume)); err != nil {
			t.Fatal(err)
		}
	}
	authority, known, after := certificates()
	if bytes.Equal(again, after) || !bytes.Equal(known, authority) {
		t.Error("the certificate is still of the cluster that is gone")
	}
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
