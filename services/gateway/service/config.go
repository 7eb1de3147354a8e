package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/gateway/authn"
)

// Config is the settings of a gateway: those of every service, of which the policy only answers what callers ask about
// their rights, since the gateway decides nothing, and a file of bearer tokens.
type Config struct {
	serve.Config
	TokensFile string // see authn.Tokens; empty for none
	// Anonymous is how many connections there may be whose caller is not known; 0 for the default of split.Limits.
	Anonymous int
	OIDC      authn.OIDCConfig
}

// parse reads the flags.
func parse(args []string, usage io.Writer) (Config, error) {
	c := Config{Config: serve.Config{Name: "gateway"}}
	fs := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	fs.SetOutput(usage)
	c.Flags(fs)
	fs.StringVar(&c.TokensFile, "tokens", "", "file of bearer tokens; empty for none")
	fs.IntVar(&c.Anonymous, "anonymous-connections", 0,
		"how many connections there may be whose caller is not known; 0: a quarter of the files that the process may open, at most 4000")
	fs.StringVar(&c.OIDC.IssuerURL, "oidc-issuer-url", "",
		"https address of the OpenID Connect issuer whose tokens are accepted; empty for none")
	fs.StringVar(&c.OIDC.ClientID, "oidc-client-id", "", "audience that the issuer's tokens must have")
	fs.StringVar(&c.OIDC.UsernameClaim, "oidc-username-claim", "sub", "claim that names the user")
	fs.StringVar(&c.OIDC.UsernamePrefix, "oidc-username-prefix", "",
		`put before the user's name; empty means the issuer's address and "#", except with the claim email; "-" means nothing`)
	fs.StringVar(&c.OIDC.GroupsClaim, "oidc-groups-claim", "", "claim with the user's groups; empty for none")
	fs.StringVar(&c.OIDC.GroupsPrefix, "oidc-groups-prefix", "", "put before the name of each group")
	fs.StringVar(&c.OIDC.CAFile, "oidc-ca-file", "",
		"file of the authorities of the issuer's certificate; empty for the host's")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	for name, value := range map[string]string{"listen": c.Listen, "dir": c.Dir, "tls-dir": c.TLSDir} {
		if value == "" {
			return c, fmt.Errorf("--%s is missing", name)
		}
	}
	if len(c.Callees()) == 0 {
		return c, errors.New("--peer is missing: there is nothing to pass calls on to")
	}
	return c, nil
}

// programs returns the programs that calls are passed on to, with their addresses; an empty one means that it is found.
func (c Config) programs() map[string]string {
	out := map[string]string{}
	for _, name := range c.Callees() {
		out[name] = c.Peers[name]
	}
	return out
}

// issuer returns the verifier of OIDC tokens; nil if there is no issuer.
func (c Config) issuer(log *slog.Logger) (*authn.OIDC, error) {
	if c.OIDC.IssuerURL == "" {
		return nil, nil
	}
	return authn.NewOIDC(c.OIDC, log)
}

// auditDirs are where the audit logs of this host are: those of the services, of which this one's directory is one, and
// of the credentials that were issued here. In a container only this process's own are there.
func (c Config) auditDirs() []string {
	services := filepath.Dir(filepath.Clean(c.Dir))
	return []string{services, filepath.Join(filepath.Dir(services), "pki")}
}

// auditedPrograms names the programs whose audit logs are on this host.
func (c Config) auditedPrograms() []string { return append(c.Callees(), c.Name) }

func (c Config) files() identity.Files {
	return identity.Files{Cert: c.tls("tls.crt"), Key: c.tls("tls.key"), CA: c.tls("ca.crt")}
}

func (c Config) etcdFiles() identity.Files {
	return identity.Files{Cert: c.tls("etcd.crt"), Key: c.tls("etcd.key"), CA: c.tls("etcd-ca.crt")}
}

func (c Config) tls(name string) string { return filepath.Join(c.TLSDir, name) }

func (c Config) endpoints() string { return filepath.Join(c.Dir, "endpoints") }
