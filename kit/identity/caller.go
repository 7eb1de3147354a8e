package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Names of users and groups that Windlass gives.
const (
	GroupMasters       = "system:masters"       // may do everything
	GroupAuthenticated = "system:authenticated" // every authenticated caller
	GroupServices      = "system:windlass"
	GroupNodes         = "system:nodes"
	GroupHosts         = "system:hosts" // the agents of the inventory's hosts

	groupServiceAccounts = "system:serviceaccounts" // every service account; with ":NAMESPACE", those of a namespace

	reservedPrefix       = "system:"
	servicePrefix        = "system:windlass:"
	nodePrefix           = "system:node:"
	hostPrefix           = "system:host:"
	serviceAccountPrefix = "system:serviceaccount:"
	trustDomain          = "windlass"
)

// ServiceURI returns the SPIFFE name of a service, such as "spiffe://windlass/service/machine-api".
func ServiceURI(name string) string { return spiffe("service", name) }

// NodeURI returns the SPIFFE name of a node, such as "spiffe://windlass/node/worker-1/UID". uid is that of the node's
// machine: a later machine of the same name is another one.
func NodeURI(name, uid string) string { return spiffe("node", name, uid) }

// HostURI returns the SPIFFE name of a host of the inventory, such as "spiffe://windlass/host/rack-1-a/UID". Its agent
// has it apart from the name of the node that its machine is. uid is that of its Host: a later host of the same name is
// another one.
func HostURI(name, uid string) string { return spiffe("host", name, uid) }

// UserURI returns the SPIFFE name of a user.
func UserURI(name string) string { return spiffe("user", name) }

func spiffe(path ...string) string {
	return (&url.URL{Scheme: "spiffe", Host: trustDomain, Path: "/" + strings.Join(path, "/")}).String()
}

// ServiceUser returns the user that a service is, such as "system:windlass:machine-api".
func ServiceUser(name string) string { return servicePrefix + name }

// NodeUser returns the user that a node is, such as "system:node:worker-1".
func NodeUser(name string) string { return nodePrefix + name }

// ServiceAccountUser returns the user that a service account is, such as "system:serviceaccount:default:operator".
// Neither a namespace nor a name has a colon.
func ServiceAccountUser(namespace, name string) string {
	return serviceAccountPrefix + namespace + ":" + name
}

// ServiceAccountGroups returns the groups of the service accounts of a namespace, without GroupAuthenticated.
func ServiceAccountGroups(namespace string) []string {
	return []string{groupServiceAccounts, groupServiceAccounts + ":" + namespace}
}

// Caller is who makes a call.
type Caller struct {
	User      string   // empty for an anonymous caller
	UID       string   // of a node: its machine's; of a host: its Host's; empty for others
	Groups    []string // of a known caller, GroupAuthenticated is one
	RequestID string   // of the call, the same in every service that the gateway passes it to
	Via       string   // user of the gateway that speaks for the caller; empty if the caller speaks itself
	Source    string   // address that the call came from, of the gateway's client if it speaks for one; empty if not known
}

// In reports whether the caller belongs to group.
func (c Caller) In(group string) bool { return slices.Contains(c.Groups, group) }

// Node returns the name of the node that the caller is; false if it is none.
func (c Caller) Node() (string, bool) {
	name, ok := strings.CutPrefix(c.User, nodePrefix)
	return name, ok && c.In(GroupNodes)
}

// Host returns the name of the inventory's host that the caller is; false if it is none.
func (c Caller) Host() (string, bool) {
	name, ok := strings.CutPrefix(c.User, hostPrefix)
	return name, ok && c.In(GroupHosts)
}

// Service returns the name of the service that the caller is; false if it is none.
func (c Caller) Service() (string, bool) {
	name, ok := strings.CutPrefix(c.User, servicePrefix)
	return name, ok && c.In(GroupServices)
}

// system reports whether the caller is a program of the cluster's own: a service, or the agent of a node or host.
func (c Caller) system() bool {
	_, service := c.Service()
	_, node := c.Node()
	_, host := c.Host()
	return service || node || host
}

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom returns the caller of the call that ctx belongs to; false outside of calls.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// FromCertificate says whom a certificate names. Whether it can be trusted, TLS has decided before. The certificate
// must have exactly one SPIFFE name of Windlass; a node's must hold the uid of its machine, a host's that of its Host,
// a user's must have the same common name, and no group of the system's but "system:masters".
func FromCertificate(cert *x509.Certificate) (Caller, error) {
	if len(cert.URIs) != 1 {
		return Caller{}, fmt.Errorf("the certificate has %d URI names, not one", len(cert.URIs))
	}
	kind, name, uid, err := parseSPIFFE(cert.URIs[0])
	if err != nil {
		return Caller{}, err
	}
	switch kind {
	case "service":
		return Caller{User: ServiceUser(name), Groups: []string{GroupServices, GroupAuthenticated}}, nil
	case "node":
		return Caller{User: NodeUser(name), UID: uid, Groups: []string{GroupNodes, GroupAuthenticated}}, nil
	case "host":
		return Caller{User: hostPrefix + name, UID: uid, Groups: []string{GroupHosts, GroupAuthenticated}}, nil
	case "user":
		return userOf(cert, name)
	}
	return Caller{}, fmt.Errorf("the certificate names neither a service, a node, a host nor a user: %s", cert.URIs[0])
}

// parseSPIFFE takes a SPIFFE name of Windlass apart. A node's and a host's have a uid behind the name, the others have
// none.
func parseSPIFFE(uri *url.URL) (kind, name, uid string, err error) {
	plain := url.URL{Scheme: "spiffe", Host: trustDomain, Path: uri.Path}
	parts := strings.Split(strings.TrimPrefix(uri.Path, "/"), "/")
	want := 2
	if parts[0] == "node" || parts[0] == "host" {
		want = 3
	}
	// Comparing the whole also refuses ports, queries, fragments and user parts.
	if uri.String() != plain.String() || len(parts) != want || slices.Contains(parts, "") {
		return "", "", "", fmt.Errorf("the certificate's name is not one of %s's: %s", trustDomain, uri)
	}
	return parts[0], parts[1], strings.Join(parts[2:], ""), nil
}

func userOf(cert *x509.Certificate, name string) (Caller, error) {
	if cert.Subject.CommonName != name {
		return Caller{}, fmt.Errorf("the certificate's common name %q is not its user %q", cert.Subject.CommonName, name)
	}
	if strings.HasPrefix(name, reservedPrefix) {
		return Caller{}, errors.New("the certificate's user begins with system:, which no user may")
	}
	groups := slices.Clone(cert.Subject.Organization)
	for _, g := range groups {
		if strings.HasPrefix(g, reservedPrefix) && g != GroupMasters {
			return Caller{}, fmt.Errorf("the certificate's group %q is not for users", g)
		}
	}
	return Caller{User: name, Groups: append(groups, GroupAuthenticated)}, nil
}
