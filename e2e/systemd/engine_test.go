package systemd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// rootFS are the arguments of mmdebstrap for the root file system of a host.
var rootFS = []string{
	"--variant=minbase", "--include=systemd,systemd-sysv,dbus,iproute2,ca-certificates", "bookworm",
}

// docker runs a command of the container engine and returns its standard output.
func docker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return output(exec.CommandContext(ctx, "docker", args...))
}

// output returns what a command prints, without the space around it. An error has the command and what it complains.
func output(cmd *exec.Cmd) (string, error) {
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), complaint.String())
	}
	return strings.TrimSpace(out.String()), err
}

// image returns the image of a host, which is made if this engine does not have it: it is named by its recipe, and
// kept.
func image(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("windlass-test-host:%.12x", sha256.Sum256([]byte(strings.Join(rootFS, " "))))
	if _, err := docker("image", "inspect", name); err == nil {
		return name
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skipf("there is no image %s, and no mmdebstrap to make it", name)
	}
	tar := filepath.Join(t.TempDir(), "host.tar")
	at := len(rootFS) - 1 // the suite comes last, behind it the file
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", append(rootFS[:at:at], rootFS[at], tar)...)
	if _, err := output(cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := docker("import", tar, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// network makes a network for one test and returns its name, and the first three numbers of its addresses.
func network(t *testing.T) (name, subnet string) {
	t.Helper()
	name = fmt.Sprintf("windlass-systemd-%d", os.Getpid())
	var err error
	for n := range 256 {
		subnet = fmt.Sprintf("172.30.%d", n)
		if _, err = docker("network", "create", "--subnet", subnet+".0/24", name); err == nil {
			t.Cleanup(func() {
				if _, err := docker("network", "rm", name); err != nil {
					t.Error(err)
				}
			})
			return name, subnet
		}
	}
	t.Fatalf("no network of 172.30.0.0/16 is free: %v", err)
	return "", ""
}

// pack makes the Debian package of the executable with a version number, in a directory.
func pack(t *testing.T, dir, version string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.Root(), "tools", "deb"), version, dir)
	if _, err := output(cmd); err != nil {
		t.Fatal(err)
	}
}
