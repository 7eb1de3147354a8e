package service

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/services/etcd-guardian/controller"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

const (
	name = "etcd-guardian"

	exitRemoved   = 3               // of etcd-member: it was removed from its cluster
	exitUsage     = 64              // of etcd-member: its settings are wrong, so another start would not help
	memberGrace   = 5 * time.Second // a member hands over, closes its files and ends in well under this
	bootstrapDir  = "bootstrap"     // below --dir
	tokenFile     = "token"         // below bootstrapDir
	noteFile      = "cluster.json"
	endpointsFile = "endpoints"

	leastQuota = 16 << 20 // the step by which a database grows
)

// config is the guardian's settings.
type config struct {
	serve           serve.Config
	bootstrapClient string // URL
	bootstrapPeer   string // URL
	pki             string // directory of the authorities etcd-client and etcd-peer
	lifetime        time.Duration
	member          []string // program and first arguments of etcd-member
	quota           int64    // of members, in bytes; 0: etcd-member's own choice
	settings        plan.Settings
	snapshotDir     string
	bucket          snapshot.S3Config // none if it has no endpoint
	hostDir         string            // of the control-plane host whose keys go into snapshots; empty: there are none
	recovered       time.Time         // when etcd was last recovered or restored; zero if it never was
}

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{serve: serve.Config{Name: name, Listen: "127.0.0.1:7103", Dir: name, TLSDir: filepath.Join(name, "tls")}}
	var recovered string
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SetOutput(stderr)
	c.serve.Flags(fs)
	fs.StringVar(&c.bootstrapClient, "bootstrap-client", "", "https://IP:2379, where the bootstrap member serves clients")
	fs.StringVar(&c.bootstrapPeer, "bootstrap-peer", "", "https://IP:2380, where the bootstrap member meets the others")
	fs.StringVar(&c.pki, "pki", "", "directory of the authorities etcd-client and etcd-peer, keys included")
	fs.DurationVar(&c.lifetime, "certificate-lifetime", 24*time.Hour, "lifetime of members' certificates")
	fs.StringSliceVar(&c.member, "member-command", nil,
		"program and first arguments that run an etcd member (default: this program with serve,etcd-member)")
	fs.Int64Var(&c.quota, "quota-backend-bytes", 0,
		"size of the database at which every member refuses writes, 16 MiB or more; members that run are started again one at a time (default: what etcd-member chooses, 2 GiB)")
	fs.DurationVar(&c.settings.LearnerStall, "learner-timeout", 60*time.Second,
		"a learner that makes no progress for so long is removed and tried again, with twice the time")
	fs.DurationVar(&c.settings.EndpointsRest, "endpoints-rest", 1200*time.Millisecond,
		"time for clients to learn new addresses before a member stops")
	fs.StringVar(&c.snapshotDir, "snapshot-dir", "",
		"directory of snapshots with the storage Directory (default: snapshots below --dir)")
	fs.StringVar(&c.bucket.Endpoint, "s3-endpoint", "", "https://HOST:PORT of an object store, for the storage S3")
	fs.StringVar(&c.bucket.Bucket, "s3-bucket", "", "bucket of the object store, which must exist")
	fs.StringVar(&c.bucket.Prefix, "s3-prefix", "", "prefix of the names of snapshots in the bucket")
	fs.StringVar(&c.bucket.Region, "s3-region", "", "region of the bucket (default: the object store's own)")
	fs.StringVar(&c.bucket.CredentialsFile, "s3-credentials", "",
		"file in the format of ~/.aws/credentials, section [default] (default: the variables AWS_…)")
	fs.StringVar(&c.hostDir, "host-dir", "",
		"directory of this control-plane host, whose keys are encrypted beside snapshots that ask for it")
	fs.StringVar(&recovered, "recovered", "", "when etcd was last recovered or restored, in RFC 3339 (default: never)")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if recovered != "" {
		at, err := time.Parse(time.RFC3339, recovered)
		if err != nil {
			return c, fmt.Errorf("--recovered %q: must be a time like %s", recovered, time.Time{}.Format(time.RFC3339))
		}
		c.recovered = at
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return c, c.complete()
}

func (c *config) complete() error {
	for flag, value := range map[string]string{"bootstrap-client": c.bootstrapClient, "bootstrap-peer": c.bootstrapPeer} {
		u, err := url.Parse(value)
		if err != nil || u.Scheme != "https" {
			return fmt.Errorf("--%s %q: want https://IP:PORT", flag, value)
		}
		if a, err := netip.ParseAddrPort(u.Host); err != nil || a.Addr().Unmap().IsUnspecified() {
			return fmt.Errorf("--%s %q: want https://IP:PORT with the IP of one host", flag, value)
		}
	}
	if c.pki == "" {
		return errors.New("--pki is required: the guardian signs the certificates of members")
	}
	if c.quota != 0 && c.quota < leastQuota {
		return fmt.Errorf("--quota-backend-bytes %d: must be %d (16 MiB) or more", c.quota, leastQuota)
	}
	if c.lifetime <= 0 {
		return fmt.Errorf("--certificate-lifetime %s: must be more than zero", c.lifetime)
	}
	if !c.serve.Knows("machine-api") {
		return errors.New("--peer machine-api=HOST:PORT is required")
	}
	if len(c.serve.EtcdEndpoints) == 0 {
		c.serve.EtcdEndpoints = []string{c.bootstrapClient}
	}
	if c.snapshotDir == "" {
		c.snapshotDir = filepath.Join(c.serve.Dir, "snapshots")
	}
	for _, dir := range []*string{&c.serve.Dir, &c.serve.TLSDir, &c.snapshotDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	if len(c.member) == 0 {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		c.member = []string{self, "serve", "etcd-member"}
	}
	return nil
}

func (c config) in(elem ...string) string {
	return filepath.Join(append([]string{c.serve.Dir}, elem...)...)
}

// elsewhere reports whether the bootstrap member is on another host: the one that began the cluster.
func (c config) elsewhere() bool {
	u, err := url.Parse(c.bootstrapClient)
	if err != nil || c.serve.Host == "" {
		return false
	}
	own, _, err := net.SplitHostPort(cmp.Or(c.serve.Advertise, c.serve.Listen))
	return err == nil && own != u.Hostname()
}

func (c config) dataDir() string { return c.in(bootstrapDir, "data") }

// token returns the token of the cluster that the bootstrap member begins: another one after a restore, so that no
// member of the cluster before can take part.
func (c config) token() (string, error) {
	b, err := os.ReadFile(c.in(bootstrapDir, tokenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return controller.ClusterToken, nil
	}
	return strings.TrimSpace(string(b)), err
}

func (c config) bootstrapTLS() string { return c.in(bootstrapDir, "tls") }
func (c config) usersFile() string    { return c.in(bootstrapDir, "users.json") }

// root returns the files by which the guardian is etcd's root.
func (c config) root() identity.Files {
	return identity.Files{
		Cert: filepath.Join(c.serve.TLSDir, "etcd-root.crt"),
		Key:  filepath.Join(c.serve.TLSDir, "etcd-root.key"),
		CA:   filepath.Join(c.serve.TLSDir, "etcd-ca.crt"),
	}
}

// memberSpec returns the process of the bootstrap member. etcd's own check of changes is off there: it refuses each add
// for 5 s after a promotion, which the guardian's own rules make needless while the cluster grows out of a single
// member.
func (c config) memberSpec(token string) process.Spec {
	args := append(append([]string{}, c.member[1:]...),
		"--name", plan.BootstrapName, "--data-dir", c.dataDir(), "--tls-dir", c.bootstrapTLS(),
		"--listen-client", c.bootstrapClient, "--listen-peer", c.bootstrapPeer,
		"--bootstrap", "--users", c.usersFile(), "--strict-reconfig-check=false", "--initial-cluster-token",
		token,
	)
	if c.quota != 0 {
		args = append(args, "--quota-backend-bytes", strconv.FormatInt(c.quota, 10))
	}
	return process.Spec{
		Name: "etcd-" + plan.BootstrapName, Path: c.member[0], Args: args, LogFile: c.in(bootstrapDir, "etcd.log"),
		Grace: memberGrace, FinalExits: []int{exitRemoved, exitUsage},
	}
}
