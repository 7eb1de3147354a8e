package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// maxCertificate bounds the life of a user's certificate.
	maxCertificate = 30 * 24 * time.Hour
	// maxToken bounds the life of a bearer token.
	maxToken = 365 * 24 * time.Hour
)

// errNoAuthority means that the keys of the cluster's authorities are not on this host.
var errNoAuthority = errors.New("the key of the cluster's authority is not here")

// Grant is a credential that is asked for: of a user, or of a provider's plugin.
type Grant struct {
	User   string
	Groups []string
	// Service is the name of a provider's plugin, which begins with "provider-"; Hosts are its DNS names and addresses.
	Service string
	Hosts   []string
	Token   bool          // a bearer token instead of a certificate
	For     time.Duration // 0 means 30 days
}

// Issued is a credential that was made: a certificate with its key and authority, or a token.
type Issued struct {
	Cert, Key, CA []byte // PEM
	Token         string
	// Entry is that of the token in the file of tokens. The caller has to add it where the control plane is on hosts.
	Entry   identity.Token
	Expires time.Time
}

// check returns what is wrong with a grant, and fills in what is left open.
func (g *Grant) check() error {
	longest := maxCertificate
	if g.Token {
		longest = maxToken
	}
	if g.For == 0 {
		g.For = maxCertificate
	}
	if g.For < time.Minute || g.For > longest {
		return fmt.Errorf("--for %v: must be from one minute to %d days", g.For, int(longest.Hours()/24))
	}
	if g.Service != "" {
		return g.checkService()
	}
	if len(g.Hosts) > 0 {
		return errors.New("--host is for a --service")
	}
	if err := identity.CheckUserName(g.User); err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	if strings.Contains(g.User, "/") && !g.Token {
		return fmt.Errorf("--user %q: a certificate's user has no slash; ask for a --token", g.User)
	}
	for _, group := range g.Groups {
		if err := identity.CheckUserName(group); err != nil {
			return fmt.Errorf("--group: %w", err)
		}
	}
	return nil
}

func (g *Grant) checkService() error {
	switch {
	case g.User != "" || g.Token || len(g.Groups) > 0:
		return errors.New("--service cannot be combined with --user, --group or --token")
	case !strings.HasPrefix(g.Service, "provider-") || strings.ContainsAny(g.Service, "/ "):
		return fmt.Errorf("--service %q: only plugins of providers get certificates, their names begin with provider-",
			g.Service)
	case len(g.Hosts) == 0:
		return errors.New("--host is missing: the name or the address at which machine-api reaches the plugin")
	}
	return nil
}

// Issue makes a credential with the cluster's authority. It is in the audit log beside the authority's key before it is
// made, and so is a refusal. ErrNoAuthority if the key is not here.
func (c *Cluster) Issue(ctx context.Context, g Grant, log *slog.Logger) (Issued, error) {
	authority, err := identity.LoadTrust(c.Dir("pki"), topology.APIAuthority)
	if errors.Is(err, fs.ErrNotExist) {
		return Issued{}, fmt.Errorf("%w (%s)", errNoAuthority, c.Dir("pki"))
	}
	if err != nil {
		return Issued{}, err
	}
	trail, err := audit.Open(audit.Config{Dir: c.Dir("pki"), Service: "windlass auth issue", Log: log})
	if err != nil {
		return Issued{}, err
	}
	defer trail.Close() //nolint:errcheck // what must be written was waited for
	record := audit.Record{
		Time: time.Now().UTC(), Event: audit.EventIssue, Service: "windlass auth issue",
		User: fmt.Sprintf("uid %d of the host", os.Getuid()),
		Name: g.User + g.Service, Groups: g.Groups,
	}
	if err := g.check(); err != nil {
		record.Reason, record.Code = err.Error(), "PermissionDenied"
		trail.Refused(record)
		return Issued{}, err
	}
	expires := time.Now().Add(g.For)
	record.Detail = fmt.Sprintf("%s until %s", g.what(), expires.UTC().Format(time.RFC3339))
	if err := trail.Event(ctx, record); err != nil {
		return Issued{}, fmt.Errorf("nothing is issued that cannot be recorded: %w", err)
	}
	if g.Token {
		return c.issueToken(g, expires)
	}
	return issueCertificate(authority, g, expires)
}

func (g *Grant) what() string {
	switch {
	case g.Token:
		return "bearer token"
	case g.Service != "":
		return "certificate of a provider"
	}
	return "client certificate"
}

func issueCertificate(authority identity.Trust, g Grant, expires time.Time) (Issued, error) {
	r := identity.Request{
		CommonName: g.User, Organizations: g.Groups, URI: identity.UserURI(g.User), Client: true,
		Lifetime: g.For,
	}
	if g.Service != "" {
		r = identity.Request{
			CommonName: g.Service, URI: identity.ServiceURI(g.Service), Server: true, Client: true,
			Lifetime: g.For,
		}
		for _, host := range g.Hosts {
			if ip := net.ParseIP(host); ip != nil {
				r.IPs = append(r.IPs, ip)
			} else {
				r.DNSNames = append(r.DNSNames, host)
			}
		}
	}
	cert, key, err := authority.Issue(r)
	if authority.NotAfter().Before(expires) {
		expires = authority.NotAfter()
	}
	return Issued{Cert: cert, Key: key, CA: authority.Bundle(), Expires: expires}, err
}

func (c *Cluster) issueToken(g Grant, expires time.Time) (Issued, error) {
	secret, entry, err := identity.NewToken(g.User, g.Groups, expires)
	if err == nil && c.Member == nil {
		err = identity.AddToken(c.TokensFile(), entry)
	}
	return Issued{Token: secret, Entry: entry, Expires: entry.Expires}, err
}

// TokensFile is where the gateway's bearer tokens are: in its directory, unless a setting names another file.
func (c *Cluster) TokensFile() string {
	file := c.Service(topology.Gateway, "tokens")
	for _, s := range c.ProgramFlags {
		if other, ok := strings.CutPrefix(s, "gateway.tokens="); ok {
			file = other
		}
	}
	return file
}

// AuditDirs are the directories of the cluster's audit logs on this host: of the services, and of what was issued.
func (c *Cluster) AuditDirs() []string {
	return []string{c.Dir("services"), c.Dir("pki")}
}

// Holds reports whether a path is in the cluster's directory.
func (c *Cluster) Holds(path string) bool {
	abs, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(c.dir, abs)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
