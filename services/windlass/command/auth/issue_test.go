package auth

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestATokenOfOneHostSaysSo(t *testing.T) {
	c, err := cluster.CreateHost(t.TempDir(), cluster.Settings{
		Name: "main", Member: &cluster.Member{Name: "h1", Address: "192.0.2.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	issued := cluster.Issued{Token: "secret", Expires: time.Now().Add(time.Hour)}
	for _, test := range []struct {
		cluster *cluster.Cluster
		warns   bool
	}{{c, true}, {&cluster.Cluster{}, false}} {
		var out, stderr bytes.Buffer
		e := &session.Env{Out: &out, Err: &stderr}
		if err := handOver(e, test.cluster, cluster.Grant{User: "ann", Token: true}, issued, ""); err != nil {
			t.Fatal(err)
		}
		warning := "Warning: only the gateway of host h1 accepts it. Append the last line of " + c.TokensFile()
		if out.String() != "secret\n" || strings.Contains(stderr.String(), warning) != test.warns {
			t.Errorf("printed %q and %q", out.String(), stderr.String())
		}
	}
}
