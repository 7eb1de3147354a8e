package rotation

import (
	"bytes"
	"testing"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

func TestAKeyIsEncryptedForOneHostAndRotationOnly(t *testing.T) {
	services, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(a *identity.Authority, host string) *hostv1.SealingKey {
		sig, err := a.SignStatement(forSealing+host, k.public())
		if err != nil {
			t.Fatal(err)
		}
		return &hostv1.SealingKey{Host: host, Key: k.public(), Signature: sig}
	}
	r, secret := &hostv1.Rotation{Id: "1", Authority: "windlass"}, []byte("the key of the next authority")
	sealed, err := seal(services, r, sign(services, "h2"), secret)
	if err != nil || bytes.Contains(sealed.GetSealed(), secret) {
		t.Fatalf("%v, %v", sealed, err)
	}
	if got, err := k.open(r, "h2", sealed); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("opened: %q, %v", got, err)
	}
	if _, err := k.open(r, "h3", sealed); err == nil {
		t.Error("it opens as that of another host")
	}
	if _, err := k.open(&hostv1.Rotation{Id: "2", Authority: "windlass"}, "h2", sealed); err == nil {
		t.Error("it opens for another rotation")
	}
	stranger, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.open(r, "h2", sealed); err == nil {
		t.Error("it opens with another key")
	}
	for name, w := range map[string]*hostv1.SealingKey{
		"a key that another authority signed": sign(other, "h2"),
		"a key that is signed for another host": {
			Host: "h3", Key: k.public(), Signature: sign(services, "h2").GetSignature(),
		},
		"a key without a signature": {Host: "h2", Key: k.public()},
	} {
		if _, err := seal(services, r, w, secret); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
