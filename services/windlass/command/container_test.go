package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/command"
)

func TestTheAdministratorGetsACertificateOfTheClusterThatIsThere(t *testing.T) {
	dir := t.TempDir()
	certificates := func() (authority, known, cert []byte) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &until{text: "created or renewed", then: cancel} // it runs on, to renew them
		if code := command.Run(ctx, []string{"container", "certificates", "--dir", dir}, nil, out, out); code != 0 {
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

// until is a buffer that does something when a text was written to it.
type until struct {
	bytes.Buffer
	text string
	then func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.Buffer.Write(p)
	if strings.Contains(u.String(), u.text) {
		u.then()
	}
	return n, err
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
