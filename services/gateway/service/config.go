package service

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
)

// Config is the settings of a gateway: those of every service, of which the policy only answers what callers ask about their
// rights, since the gateway decides nothing, and a file of bearer tokens.
type Config struct {
	serve.Config
	TokensFile string // see authn.Tokens; empty for none
	// Anonymous is how many connections there may be whose caller is not known; 0 for the default of split.Limits.
	Anonymous int
}

// parse reads the flags.
func parse(args []string, usage io.Writer) (Config, error) {
	c := Config{Config: serve.Config{Name: "gateway"}}
	fs := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	fs.SetOutput(usage)
	c.Flags(fs)
	fs.StringVar(&c.TokensFile, "tokens", "", "file of bearer tokens; empty for none")
	fs.IntVar(&c.Anonymous, "anonymous-connections", 0, "how many connections there may be whose caller is not known; 0: a quarter of the files that the process may open, at most 4000")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	for name, value := range map[string]string{"listen": c.Listen, "dir": c.Dir, "tls-dir": c.TLSDir} {
		if value == "" {
			return c, fmt.Errorf("--%s is missing", name)
		}
	}
	if len(c.Peers) == 0 {
		return c, errors.New("--peer is missing: there is nothing to pass calls on to")
	}
	return c, nil
}

func (c Config) files() identity.Files {
	return identity.Files{Cert: c.tls("tls.crt"), Key: c.tls("tls.key"), CA: c.tls("ca.crt")}
}

func (c Config) etcdFiles() identity.Files {
	return identity.Files{Cert: c.tls("etcd.crt"), Key: c.tls("etcd.key"), CA: c.tls("etcd-ca.crt")}
}

func (c Config) tls(name string) string { return filepath.Join(c.TLSDir, name) }

func (c Config) endpoints() string { return filepath.Join(c.Dir, "endpoints") }
