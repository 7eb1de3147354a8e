package identity

import (
	"crypto/x509"
	"fmt"
	"strconv"
	"strings"
)

// MemberURI returns the name of a member of etcd's cluster in its peer certificate:
// "spiffe://windlass/etcd-member/CLUSTER/MEMBER", both in hexadecimal. etcd never uses an id again, so a certificate
// stays that of the one member for which it was made.
func MemberURI(cluster, member uint64) string {
	return spiffe("etcd-member", strconv.FormatUint(cluster, 16), strconv.FormatUint(member, 16))
}

// MemberFrom returns the member that a peer certificate names. Whether the certificate can be trusted, TLS has decided
// before.
func MemberFrom(cert *x509.Certificate) (cluster, member uint64, err error) {
	if len(cert.URIs) != 1 {
		return 0, 0, fmt.Errorf("certificate %q: names no member of etcd's cluster", cert.Subject.CommonName)
	}
	path, ok := strings.CutPrefix(cert.URIs[0].String(), spiffe("etcd-member")+"/")
	first, second, both := strings.Cut(path, "/")
	if cluster, err = strconv.ParseUint(first, 16, 64); err == nil {
		member, err = strconv.ParseUint(second, 16, 64)
	}
	if !ok || !both || err != nil || cert.URIs[0].String() != MemberURI(cluster, member) {
		return 0, 0, fmt.Errorf("certificate %q: %q is no name of a member of etcd's cluster", cert.Subject.CommonName,
			cert.URIs[0])
	}
	return cluster, member, nil
}
