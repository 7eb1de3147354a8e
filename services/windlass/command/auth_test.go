package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// stopped makes a cluster that does not run.
func stopped(t *testing.T) *cluster.Cluster {
	t.Helper()
	t.Setenv("WINDLASS_HOME", t.TempDir())
	c, err := cluster.Create(t.Context(), cluster.Settings{Name: "idle"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheStatusOfARotationBeginsNone(t *testing.T) {
	c := stopped(t)
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"auth", "rotate", "api", "--status", "--name", c.Name, "--timeout", "1s"}, nil, &out,
		&errs)
	if code != 0 || !strings.Contains(out.String(), "AUTHORITY") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	if step, err := c.Rotation(topology.APIAuthority); err != nil || step != identity.Steady {
		t.Errorf("the rotation is at %q, %v", step, err)
	}
}

func TestATokenIsNotIssuedIntoADirectory(t *testing.T) {
	c := stopped(t)
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"auth", "issue", "--name", c.Name, "--user", "ann", "--token", "--out", t.TempDir()},
		nil, &out, &errs)
	if code == 0 || !strings.Contains(errs.String(), "--out") || out.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}

func TestThePolicyOfAClusterOnThisMachineIsAFile(t *testing.T) {
	c := stopped(t)
	for _, args := range [][]string{
		{"policy", "show"},
		{"policy", "status"},
		{"policy", "apply", "-f", c.Dir("policy.yaml")},
		{"token", "list"},
		{"token", "delete", "00"},
		{"token", "import", "-f", "-"},
	} {
		file := c.Dir("policy.yaml")
		if args[0] == "token" {
			file = c.TokensFile()
		}
		var out, errs bytes.Buffer
		code := Run(t.Context(), append(append([]string{"auth"}, args...), "--name", c.Name), strings.NewReader(""),
			&out, &errs)
		if code != 1 || !strings.Contains(errs.String(), "is a file of this machine: edit "+file) {
			t.Errorf("%v: exit code %d: %s%s", args, code, out.String(), errs.String())
		}
	}
}
