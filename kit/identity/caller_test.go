package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustURI(t *testing.T, texts ...string) (uris []*url.URL) {
	t.Helper()
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		uris = append(uris, u)
	}
	return uris
}

func TestFromCertificate(t *testing.T) {
	tests := []struct {
		name string
		cn   string
		orgs []string
		uris []string
		want Caller // zero if the certificate names no caller
	}{
		{
			"a service is a user of the system's", "x", nil,
			[]string{"spiffe://windlass/service/machine-api"},
			Caller{User: "system:windlass:machine-api", Groups: []string{"system:windlass", "system:authenticated"}},
		},
		{
			"a node's common name and organizations mean nothing", "root",
			[]string{"system:masters"},
			[]string{"spiffe://windlass/node/worker-1/u-1"},
			Caller{User: "system:node:worker-1", UID: "u-1", Groups: []string{"system:nodes", "system:authenticated"}},
		},
		{
			"a host's common name and organizations mean nothing", "root",
			[]string{"system:masters"},
			[]string{"spiffe://windlass/host/rack-1-a/u-1"},
			Caller{User: "system:host:rack-1-a", UID: "u-1", Groups: []string{"system:hosts", "system:authenticated"}},
		},
		{"a host has a uid", "a", nil, []string{"spiffe://windlass/host/rack-1-a"}, Caller{}},
		{"a user cannot be a host", "system:host:a", nil, []string{"spiffe://windlass/user/system:host:a"}, Caller{}},
		{
			"a user has the groups of its organizations", "alice@example.com",
			[]string{"ops", "system:masters"},
			[]string{"spiffe://windlass/user/alice@example.com"},
			Caller{User: "alice@example.com", Groups: []string{"ops", "system:masters", "system:authenticated"}},
		},
		{"a user whose names differ is anonymous", "alice", nil, []string{"spiffe://windlass/user/bob"}, Caller{}},
		{"a user cannot be a node", "system:node:n", nil, []string{"spiffe://windlass/user/system:node:n"}, Caller{}},
		{
			"a user cannot join the nodes", "alice",
			[]string{"system:nodes"},
			[]string{"spiffe://windlass/user/alice"},
			Caller{},
		},
		{"a certificate without a name is anonymous", "alice", nil, nil, Caller{}},
		{
			"two names are one too many", "a", nil,
			[]string{"spiffe://windlass/node/a/u", "spiffe://windlass/service/gateway"},
			Caller{},
		},
		{"another trust domain is anonymous", "a", nil, []string{"spiffe://example.com/service/gateway"}, Caller{}},
		{"another scheme is anonymous", "a", nil, []string{"https://windlass/service/gateway"}, Caller{}},
		{"a name with a query is anonymous", "a", nil, []string{"spiffe://windlass/service/gateway?x=1"}, Caller{}},
		{"a name with a port is anonymous", "a", nil, []string{"spiffe://windlass:1/service/gateway"}, Caller{}},
		{"a name with a slash is anonymous", "a", nil, []string{"spiffe://windlass/service/a/b"}, Caller{}},
		{"a node without the uid of its machine is anonymous", "a", nil, []string{"spiffe://windlass/node/a"}, Caller{}},
		{"a node with an empty uid is anonymous", "a", nil, []string{"spiffe://windlass/node/a/"}, Caller{}},
		{"a node with more than a uid is anonymous", "a", nil, []string{"spiffe://windlass/node/a/u/x"}, Caller{}},
		{"a name with a hidden slash is anonymous", "a", nil, []string{"spiffe://windlass/node/a%2Fb/u"}, Caller{}},
		{"an empty name is anonymous", "a", nil, []string{"spiffe://windlass/node/"}, Caller{}},
		{"another kind is anonymous", "a", nil, []string{"spiffe://windlass/robot/a"}, Caller{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FromCertificate(&x509.Certificate{
				Subject: pkix.Name{CommonName: tt.cn, Organization: tt.orgs}, URIs: mustURI(t, tt.uris...),
			})
			if (err != nil) != (tt.want.User == "") {
				t.Errorf("error %v", err)
			}
			if err == nil {
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("caller (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestCallerKinds(t *testing.T) {
	if n, ok := (Caller{User: NodeUser("a"), Groups: []string{GroupNodes}}).Node(); !ok || n != "a" {
		t.Errorf("Node = %q %v", n, ok)
	}
	if _, ok := (Caller{User: NodeUser("a")}).Node(); ok {
		t.Error("a user named like a node, without the group, is a node")
	}
	if s, ok := (Caller{User: ServiceUser("a"), Groups: []string{GroupServices}}).Service(); !ok || s != "a" {
		t.Errorf("Service = %q %v", s, ok)
	}
}
