package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/identity"
)

// Config is the settings of a gateway.
type Config struct {
	Listen        string // address for everybody
	MetricsListen string // address of plain HTTP for /metrics; empty for none
	Dir           string // endpoints and audit.log stand there
	// TLSDir holds ca.crt, tls.crt and tls.key, and for etcd etcd-ca.crt, etcd.crt and etcd.key.
	TLSDir        string
	TokensFile    string            // bearer tokens, see authn.Tokens; empty for none
	EtcdEndpoints []string          // may be empty: then nobody's leader is known
	Peers         map[string]string // program → address
	LogLevel      string            // debug, info, warn or error
}

// parse reads the flags. errors are for whoever typed them.
func parse(args []string, usage io.Writer) (Config, error) {
	var c Config
	var policy string
	fs := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	fs.SetOutput(usage)
	fs.StringVar(&c.Listen, "listen", "", "address to listen at, for gRPC and REST")
	fs.StringVar(&c.MetricsListen, "metrics-listen", "", "address of /metrics, plain HTTP; empty for none")
	fs.StringVar(&c.Dir, "dir", "", "directory of the service's files")
	fs.StringVar(&c.TLSDir, "tls-dir", "", "directory of certificates and keys")
	fs.StringVar(&c.TokensFile, "tokens", "", "file of bearer tokens; empty for none")
	fs.StringSliceVar(&c.EtcdEndpoints, "etcd-endpoints", nil, "addresses of etcd")
	fs.StringToStringVar(&c.Peers, "peer", nil, "address of a program, as name=host:port; once for each")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&policy, "policy", "", "taken for the other services' sake; the gateway decides nothing")
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

func newLog(level string, w io.Writer) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})).With("service", "gateway"), nil
}
