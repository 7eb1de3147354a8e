package serve

import (
	"cmp"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// DefaultConnectionAge is less than the remaining validity of a one-day certificate when it is renewed.
const DefaultConnectionAge = time.Hour

// Config holds the settings with which a service process starts.
type Config struct {
	Name          string            // of the service, such as "machine-api"; also its etcd user
	Listen        string            // address for gRPC; port 0 picks one
	Advertise     string            // address at which others reach Listen; empty means Listen itself
	MetricsListen string            // address for /metrics over TLS, for authorized callers; empty for none
	Dir           string            // the process's own files: endpoints, audit.log; created if missing
	TLSDir        string            // ca.crt tls.crt tls.key, and etcd-ca.crt etcd.crt etcd.key
	Policy        string            // policy file; empty for the default policy
	EtcdEndpoints []string          // URLs of the first members; with none, and none on disk, Process.Etcd is nil
	Peers         map[string]string // addresses of sibling services by name
	// Host is the name of the host in a cluster of several: the process announces itself in etcd, and finds there the
	// services that Peers does not have. Empty: it is the only process of its service.
	Host          string
	ConnectionAge time.Duration // age at which clients are asked to connect again; 0 means never
	AuditSinks    []string      // where audit records also go, see audit.ParseSink
	LogLevel      string        // debug, info, warn or error; empty means info

	// RecordKMS is the address of a KMS plugin that seals the secret records, such as unix:///run/kms.sock; empty: the key
	// ring in TLSDir seals them. RecordSealer selects which of the two seals if both exist: SealByKMS (the default) or
	// SealByFile; records of both can be opened.
	RecordKMS    string
	RecordSealer string

	// AdmitStrangers accepts connections without a client certificate; these can call only methods whose access option is
	// unauthenticated. It is for the service that nodes join at, and is set by the program, not by a flag.
	AdmitStrangers bool
}

// Flags adds the settings to fs. The values in c are the defaults.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", c.Listen, "address to serve gRPC on")
	fs.StringVar(&c.Advertise, "advertise", c.Advertise,
		"address at which other services reach this process, if it differs from --listen")
	fs.StringVar(&c.MetricsListen, "metrics-listen", c.MetricsListen,
		"address to serve /metrics on, over TLS and for authorized callers")
	fs.StringVar(&c.Dir, "dir", c.Dir, "directory for the process's own files")
	fs.StringVar(&c.TLSDir, "tls-dir", c.TLSDir, "directory of certificates and keys")
	fs.StringVar(&c.Policy, "policy", c.Policy, "authorization policy file; empty for the built-in policy")
	fs.StringSliceVar(&c.EtcdEndpoints, "etcd-endpoints", c.EtcdEndpoints, "URLs of the first etcd members to connect to")
	fs.StringToStringVar(&c.Peers, "peer", c.Peers, "address of another service, as name=host:port; may be repeated")
	fs.StringVar(&c.Host, "host", c.Host,
		"name of this host in a cluster of several: services find each other in etcd, where no --peer is given")
	fs.DurationVar(&c.ConnectionAge, "connection-age", cmp.Or(c.ConnectionAge, DefaultConnectionAge),
		"age at which clients are asked to connect again, with their newest certificate; open streams continue")
	fs.StringSliceVar(&c.AuditSinks, "audit-sink", c.AuditSinks,
		"where audit records also go: file:/DIR, syslog://HOST:PORT, syslog+tcp://HOST:PORT, syslog+unix:/PATH, otlp://HOST:PORT or otlps://HOST:PORT; may be repeated")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
}

// OpenAudit opens the audit logs of the process in its directory.
func (c Config) OpenAudit(log *slog.Logger) (*audit.Trail, error) {
	var sinks []audit.Sink
	for _, setting := range c.AuditSinks {
		s, err := audit.ParseSink(setting)
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, s)
	}
	return audit.Open(audit.Config{Dir: c.Dir, Service: c.Name, Sinks: sinks, Log: log})
}

// OpenPolicy reads the policy of the process. The hash of the effective policy is written to the audit log, now and at
// each change.
func (c Config) OpenPolicy(trail *audit.Trail, log *slog.Logger) (*identity.Policy, error) {
	policy, err := identity.LoadPolicy(c.Policy)
	if err != nil {
		return nil, err
	}
	policy.Log = log
	policy.Changed = func(hash string) {
		trail.Noted(audit.Record{Event: audit.EventPolicy, Detail: c.Policy, Hash: hash})
	}
	policy.Changed(policy.Hash())
	return policy, nil
}

func (c Config) files() identity.Files {
	return identity.Files{
		Cert: filepath.Join(c.TLSDir, "tls.crt"),
		Key:  filepath.Join(c.TLSDir, "tls.key"),
		CA:   filepath.Join(c.TLSDir, "ca.crt"),
	}
}

func (c Config) etcdFiles() identity.Files {
	return identity.Files{
		Cert: filepath.Join(c.TLSDir, "etcd.crt"),
		Key:  filepath.Join(c.TLSDir, "etcd.key"),
		CA:   filepath.Join(c.TLSDir, "etcd-ca.crt"),
	}
}

// RecordKeysFile is the key ring for sealed records in a service's --tls-dir.
const RecordKeysFile = "record-keys.json"

// Values of Config.RecordSealer.
const (
	SealByKMS  = "kms"
	SealByFile = "file"
)

// RecordFlags adds the settings of a service that seals records to fs.
func (c *Config) RecordFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.RecordKMS, "record-kms", "",
		"unix:///PATH of a KMS v2 plugin whose key seals records; the key file beside the certificates opens what it has sealed")
	fs.StringVar(&c.RecordSealer, "record-sealer", SealByKMS,
		"what seals records if --record-kms is set: kms or file; records of both can be opened")
}

func (c Config) recordKeys() string { return filepath.Join(c.TLSDir, RecordKeysFile) }

// Knows reports whether the process can call a service: it was given an address of it, or finds it in etcd.
func (c Config) Knows(service string) bool {
	return slices.Contains(c.Callees(), service)
}

// Callees returns the names of the services that the process can call, sorted: those whose addresses it was given, and
// on a host of several all that its row in kit/topology names.
func (c Config) Callees() []string {
	names := slices.Collect(maps.Keys(c.Peers))
	if s, ok := topology.Find(c.Name); ok && c.Host != "" {
		names = append(names, s.PeersOnHosts()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ServicesFile is where a process on a host keeps which services it found last.
func (c Config) ServicesFile() string { return filepath.Join(c.Dir, "services.json") }

func (c Config) endpointsFile() string { return filepath.Join(c.Dir, "endpoints") }
