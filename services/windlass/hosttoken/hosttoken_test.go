package hosttoken

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func token(t *testing.T) Token {
	t.Helper()
	out, err := New()
	if err != nil {
		t.Fatal(err)
	}
	out.CA, out.Gateways = "sha256:00", []string{"192.0.2.1:6443", "[2001:db8::1]:6443"}
	return out
}

func TestATokenIsReadAsItWasWritten(t *testing.T) {
	want := token(t)
	got, err := Parse(" " + want.String() + "\n")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if another := token(t); another.ID == want.ID || bytes.Equal(another.Secret, want.Secret) {
		t.Error("two tokens have the same secret")
	}
}

func TestATextThatIsNoTokenIsRefused(t *testing.T) {
	good := token(t).String()
	none := token(t)
	none.Gateways = nil
	bad := token(t)
	bad.Gateways = []string{"192.0.2.1"}
	for name, text := range map[string]string{
		"nothing": "", "another prefix": "x" + good, "cut off": good[:len(good)-8], "no base64": prefix + "§",
		"no JSON": prefix + "AAAA", "no gateway": none.String(), "a gateway without a port": bad.String(),
		"no secret": Token{ID: strings.Repeat("0", 32), CA: "x", Gateways: []string{"192.0.2.1:1"}}.String(),
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestABundleIsReadByItsTokenAlone(t *testing.T) {
	own, other := token(t), token(t)
	sealed, err := own.Seal([]byte("the keys"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("the keys")) {
		t.Error("the bundle is not encrypted")
	}
	if got, err := own.Open(sealed); err != nil || string(got) != "the keys" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := other.Open(sealed); err == nil {
		t.Errorf("another token opens it: %q", got)
	}
	sealed[len(sealed)/2] ^= 1
	if got, err := own.Open(sealed); err == nil {
		t.Errorf("a changed bundle is opened: %q", got)
	}
	if bytes.Equal(own.Proof(), own.ProofHash()) || bytes.Contains(own.Proof(), own.Secret) {
		t.Error("the proof shows the secret")
	}
}
