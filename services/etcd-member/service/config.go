package service

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/serve"
)

// Files that --tls-dir holds. Leaf certificates are read again at each handshake, CAs at start only; what a member
// trusts it says of itself (trust.go).
const (
	clientCAFile   = "etcd-ca.crt"     // signs the certificates of etcd users
	serverCertFile = "etcd-server.crt" // of the client port, for its address
	serverKeyFile  = "etcd-server.key"
	peerCAFile     = "peer-ca.crt" // signs members' certificates and nothing else
	// for its address and its identity (identity.MemberURI), with both server and client usage
	peerCertFile = "peer.crt"
	peerKeyFile  = "peer.key"
)

// config holds the settings of one member.
type config struct {
	name            string
	dataDir         string
	httpSocket      string
	listenClient    string
	listenPeer      string
	advertiseClient string
	advertisePeer   string
	initialCluster  string
	clusterState    string
	clusterToken    string
	tlsDir          string
	usersFile       string
	bootstrap       bool
	strictCheck     bool
	tickMS          uint
	electionMS      uint
	quotaBytes      int64
	memoryBytes     int64
	connectionAge   time.Duration
	logLevel        string
}

func (c *config) flags(out io.Writer) *pflag.FlagSet {
	fs := pflag.NewFlagSet("etcd-member", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.SortFlags = false
	fs.StringVar(&c.name, "name", "", "name of the member, unique in the cluster")
	fs.StringVar(&c.dataDir, "data-dir", "", "directory of its data")
	fs.StringVar(&c.listenClient, "listen-client", "", "https://IP:PORT for clients, gRPC only")
	fs.StringVar(&c.listenPeer, "listen-peer", "", "https://IP:PORT for the other members")
	fs.StringVar(&c.advertiseClient, "advertise-client", "", "URL by which clients reach it (default: --listen-client)")
	fs.StringVar(&c.advertisePeer, "advertise-peer", "", "URL by which members reach it (default: --listen-peer)")
	fs.StringVar(&c.initialCluster, "initial-cluster", "",
		"name=URL,... of all members' peer URLs, its own included (default: itself alone); ignored once there is data")
	fs.StringVar(&c.clusterState, "initial-cluster-state", "new",
		"new, or existing to join a cluster that this member was added to; ignored once there is data")
	fs.StringVar(&c.clusterToken, "initial-cluster-token", "windlass",
		"distinguishes clusters that were made of the same names and URLs")
	fs.StringVar(&c.tlsDir, "tls-dir", "", "directory with "+strings.Join(tlsFiles(), ", "))
	fs.BoolVar(&c.bootstrap, "bootstrap", false, "refuse all clients until the users of --users are set up")
	fs.StringVar(&c.usersFile, "users", "", "JSON file of etcd users to set up; what is there already stays")
	fs.BoolVar(&c.strictCheck, "strict-reconfig-check", true,
		"let etcd itself refuse changes of membership that look unsafe to it")
	fs.UintVar(&c.tickMS, "tick-ms", 100, "heartbeat interval in milliseconds")
	fs.UintVar(&c.electionMS, "election-ms", 1000, "election timeout in milliseconds, at least five ticks")
	fs.Int64Var(&c.quotaBytes, "quota-backend-bytes", 2<<30, "size of the database at which only deletions are accepted")
	fs.Int64Var(&c.memoryBytes, "memory-limit-bytes", 256<<20, "soft limit of memory, unless GOMEMLIMIT is set; 0: none")
	fs.StringVar(&c.httpSocket, "http-socket", "",
		"Unix socket for /health, /readyz, /livez, /version and /metrics (default: http.sock beside --data-dir)")
	fs.DurationVar(&c.connectionAge, "connection-age", serve.DefaultConnectionAge,
		"age at which clients are asked to connect again, with their newest certificate; open streams live on")
	fs.StringVar(&c.logLevel, "log-level", "warn", "least level of etcd's own messages: debug, info, warn or error")
	return fs
}

// parse reads the flags. It returns pflag.ErrHelp if only help was asked for.
func parse(args []string, out io.Writer) (config, error) {
	var c config
	fs := c.flags(out)
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err := c.complete(); err != nil {
		return config{}, err
	}
	return c, c.check()
}

// complete sets what follows from other settings. Paths become absolute.
func (c *config) complete() error {
	for flag, value := range map[string]string{
		"name": c.name, "data-dir": c.dataDir, "tls-dir": c.tlsDir,
		"listen-client": c.listenClient, "listen-peer": c.listenPeer,
	} {
		if value == "" {
			return fmt.Errorf("--%s is required", flag)
		}
	}
	dir, err := filepath.Abs(c.dataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	c.dataDir = dir
	if c.httpSocket == "" {
		c.httpSocket = filepath.Join(filepath.Dir(dir), "http.sock")
	}
	if c.httpSocket, err = filepath.Abs(c.httpSocket); err != nil {
		return fmt.Errorf("--http-socket: %w", err)
	}
	if c.advertiseClient == "" {
		c.advertiseClient = c.listenClient
	}
	if c.advertisePeer == "" {
		c.advertisePeer = c.listenPeer
	}
	if c.initialCluster == "" {
		c.initialCluster = c.name + "=" + c.advertisePeer
	}
	return nil
}

func (c config) check() error {
	if strings.ContainsAny(c.name, "=,") {
		return fmt.Errorf("--name %q: must not contain = or ,", c.name)
	}
	for flag, value := range map[string]string{"listen-client": c.listenClient, "listen-peer": c.listenPeer} {
		if err := checkListen(value); err != nil {
			return fmt.Errorf("--%s %q: %w", flag, value, err)
		}
	}
	for flag, value := range map[string]string{"advertise-client": c.advertiseClient, "advertise-peer": c.advertisePeer} {
		u, err := url.Parse(value)
		if err != nil {
			return fmt.Errorf("--%s %q: %w", flag, value, err)
		}
		if err := serve.CheckAdvertised(u.Host); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	if c.bootstrap && c.usersFile == "" {
		return errors.New("--bootstrap needs --users")
	}
	if c.clusterState != "new" && c.clusterState != "existing" {
		return fmt.Errorf("--initial-cluster-state %q: want new or existing", c.clusterState)
	}
	if c.tickMS == 0 || c.electionMS < 5*c.tickMS {
		return fmt.Errorf("--election-ms %d: want at least five times --tick-ms %d", c.electionMS, c.tickMS)
	}
	return c.checkTLS()
}

func checkListen(value string) error {
	u, err := url.Parse(value)
	if err != nil {
		return err
	}
	if u.Scheme != "https" || u.Path != "" {
		return errors.New("want https://IP:PORT")
	}
	if _, err := netip.ParseAddrPort(u.Host); err != nil {
		return errors.New("want https://IP:PORT")
	}
	return nil
}

func tlsFiles() []string {
	return []string{clientCAFile, serverCertFile, serverKeyFile, peerCAFile, peerCertFile, peerKeyFile}
}

// checkTLS finds missing and mismatched files now: etcd would end the whole process over some of them.
func (c config) checkTLS() error {
	for _, name := range []string{clientCAFile, peerCAFile} {
		if _, err := os.ReadFile(c.tls(name)); err != nil {
			return fmt.Errorf("--tls-dir: %w", err)
		}
	}
	for _, pair := range [][2]string{{serverCertFile, serverKeyFile}, {peerCertFile, peerKeyFile}} {
		if _, err := tls.LoadX509KeyPair(c.tls(pair[0]), c.tls(pair[1])); err != nil {
			return fmt.Errorf("--tls-dir: %s and %s: %w", pair[0], pair[1], err)
		}
	}
	return nil
}

func (c config) tls(name string) string {
	return filepath.Join(c.tlsDir, name)
}

// maxSocketPath is what the kernel takes, less the closing NUL and the suffix of the socket that etcd has for peers.
const maxSocketPath = 107 - len(".peer")

// socketPath returns a name for the HTTP socket that the kernel takes. A longer one is reached through a
// descriptor of its directory, which stays open as long as the process lives.
func (c config) socketPath() (string, error) {
	if len(c.httpSocket) <= maxSocketPath {
		return c.httpSocket, nil
	}
	dir, err := unix.Open(filepath.Dir(c.httpSocket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("--http-socket: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(c.httpSocket)), nil
}
