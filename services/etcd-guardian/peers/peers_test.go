package peers_test

import (
	"bytes"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/etcd-guardian/peers"
)

// A member that joins in the middle of a rotation must trust both authorities, or it speaks with a part of the members
// alone.
func TestAMemberIsGivenEveryAuthorityThatIsTrusted(t *testing.T) {
	dir, keys := t.TempDir(), t.TempDir()
	for _, name := range []string{"etcd-client", "etcd-peer"} {
		a, err := identity.NewAuthority(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Save(dir); err != nil {
			t.Fatal(err)
		}
		if err := identity.PrepareRotation(dir, name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	signer, err := peers.New(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	request, err := identity.RequestFor(filepath.Join(keys, "a.key"), "a")
	if err != nil {
		t.Fatal(err)
	}
	out, err := signer.Sign(peers.Member{Name: "a", Cluster: 1, ID: 2, Address: net.IPv4(192, 0, 2, 1)}, request, request)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{
		"etcd-client": out.GetClientAuthority(),
		"etcd-peer":   out.GetPeerAuthority(),
	} {
		want, err := identity.LoadTrust(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bundle()) {
			t.Errorf("%s: %d bytes of authorities, want %d: the next one too", name, len(got), len(want.Bundle()))
		}
	}
}
