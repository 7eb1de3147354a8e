package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// FuzzFromCertificate holds that no name in a certificate makes a user into one of the system's, and that a name has
// one form alone.
func FuzzFromCertificate(f *testing.F) {
	for _, seed := range []string{
		ServiceURI("scheduler"), UserURI("alice"), "spiffe://windlass/node/a/uid-1", "spiffe://windlass/node/a",
		"spiffe://windlass/user/system%3Amasters", "spiffe://windlass:1/user/a",
		"spiffe://windlass/user/a%2Fb", "spiffe://windlass/node/../user/a", "SPIFFE://windlass/user/a",
		"spiffe://windlass//a", "spiffe://a@windlass/user/b?c#d", "spiffe:windlass/user/a",
	} {
		f.Add(seed, "alice", "system:masters")
	}
	f.Fuzz(func(t *testing.T, text, name, group string) {
		uri, err := url.Parse(text)
		if err != nil {
			return
		}
		text = uri.String() // a scheme has no case
		c,
			err := FromCertificate(&x509.Certificate{
			URIs:    []*url.URL{uri},
			Subject: pkix.Name{CommonName: name, Organization: []string{group}},
		})
		if err != nil {
			if c.User != "" || len(c.Groups) > 0 {
				t.Fatalf("%q is refused and is %+v", text, c)
			}
			return
		}
		switch {
		case strings.HasPrefix(c.User, servicePrefix):
			if ServiceURI(strings.TrimPrefix(c.User, servicePrefix)) != text || slices.Contains(c.Groups, group) &&
				group != GroupServices && group != GroupAuthenticated {
				t.Fatalf("%q of group %q is %+v", text, group, c)
			}
		case strings.HasPrefix(c.User, nodePrefix):
			if NodeURI(strings.TrimPrefix(c.User, nodePrefix), c.UID) != text || c.UID == "" ||
				slices.Contains(c.Groups, group) && group != GroupNodes && group != GroupAuthenticated {
				t.Fatalf("%q of group %q is %+v", text, group, c)
			}
		default:
			if c.User == "" || c.User != name || strings.HasPrefix(c.User, reservedPrefix) || UserURI(c.User) != text {
				t.Fatalf("%q, common name %q, is %+v", text, name, c)
			}
		}
	})
}
