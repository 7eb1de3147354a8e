package service

import (
	"crypto/x509"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

// A pipeline of raft may use its connection when its certificate has just expired.
func TestAPeerThatIsRefusedForNowIsNotRemoved(t *testing.T) {
	member, err := url.Parse(identity.MemberURI(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, cert := range map[string]*x509.Certificate{
		"a certificate that has expired":     {URIs: []*url.URL{member}, NotAfter: now.Add(-time.Second)},
		"a certificate that names no member": {NotAfter: now.Add(time.Hour)},
	} {
		code, why := (&peerHandler{}).check(cert, now)
		if code == 0 || code == http.StatusForbidden || code == http.StatusGone {
			t.Errorf("%s: %d %s; raft takes 403 and 410 for its removal", name, code, why)
		}
	}
}
