package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const (
	keepaliveTime    = 10 * time.Second // the least that grpc-go allows a client; members permit it
	keepaliveTimeout = 3 * time.Second
	streamWindow     = 1 << 20         // bytes that a member may send before it hears that they were read: of one stream,
	connWindow       = 4 << 20         // and of all
	maxRequestBytes  = 8 << 20         // as the members accept
	syncInterval     = time.Second     // a voter that joined is known to all clients soon after
	calmInterval     = 6 * time.Second // while nothing changes: each question costs the leader a round to the others
	calmAfter        = time.Minute
	calmVoters       = 3               // with as many addresses at hand, losing one between two rounds strands nobody
	syncTry          = 2 * time.Second // without a quorum the question hangs
)

// ClientConfig says how to reach etcd. Endpoints or EndpointsFile must name at least one address.
type ClientConfig struct {
	Endpoints     []string     // URLs
	EndpointsFile string       // one URL per line, kept by SyncEndpoints; may be missing
	TLS           *tls.Config  // nil: no TLS
	Log           *slog.Logger // nil: silent
}

// Dial returns a client over all addresses of the configuration and its file. It does not wait for a connection.
func Dial(cfg ClientConfig) (*clientv3.Client, error) {
	saved, err := readEndpoints(cfg.EndpointsFile)
	if err != nil {
		return nil, err
	}
	// The file is newer than the configuration: after the pivot the configured address is gone.
	endpoints := unique(append(saved, cfg.Endpoints...))
	if len(endpoints) == 0 {
		return nil, errors.New("no address of etcd is known")
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		TLS:                  cfg.TLS,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		PermitWithoutStream:  true,
		MaxCallSendMsgSize:   maxRequestBytes,
		Logger:               clientLog(cfg.Log),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				// The default doubles up to two minutes: it would find a cluster that is back seconds too late.
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}),
			// Of a fixed size: else each message that comes in, such as how far a watch is, costs a ping and its answer to measure the line.
			grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return client, nil
}

// SyncEndpoints keeps the addresses of the client, and those in file, in step with the voters of the cluster, until ctx
// ends. With an empty file name nothing is written. An empty list is never taken over. A file that cannot be written, as on a full
// disk, is logged and tried again: the client has the addresses all the same.
func SyncEndpoints(ctx context.Context, c *clientv3.Client, file string, log *slog.Logger) error {
	saved, err := readEndpoints(file)
	if err != nil {
		log.WarnContext(ctx, "addresses of etcd", "file", file, "error", err)
	}
	said := ""
	changed := time.Now()
	for {
		voters, err := voterURLs(ctx, c)
		if err != nil {
			changed = time.Now() // no answer: something is going on
		}
		if err == nil && len(voters) > 0 {
			if !slices.Equal(voters, sorted(c.Endpoints())) {
				c.SetEndpoints(voters...)
				changed = time.Now()
			}
			if file != "" && !slices.Equal(voters, saved) {
				if err := writeEndpoints(file, voters); err == nil {
					saved, said = voters, ""
				} else if text := err.Error(); text != said {
					said = text
					log.WarnContext(ctx, "addresses of etcd are not saved", "file", file, "error", err)
				}
			}
		}
		// No answer now: the addresses at hand stay good, and the next round asks again.
		pause := syncInterval
		if len(voters) >= calmVoters && time.Since(changed) > calmAfter {
			pause = calmInterval
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// ErrNotReady means that no linearizable read came through.
var ErrNotReady = errors.New("etcd is not ready")

// secondRead is when another member is asked, too: a member that hangs takes its time to be noticed.
const secondRead = 400 * time.Millisecond

// Ready returns nil once a linearizable read came through, so a quorum answers. It needs no right. Until ctx ends it asks again and again, the
// next member while one does not answer; the error is that of the first that answered.
func Ready(ctx context.Context, c *clientv3.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error)
	ask := func() {
		_, err := c.MemberList(ctx)
		select {
		case answers <- err:
		case <-ctx.Done():
		}
	}
	go ask()
	again := time.NewTicker(secondRead)
	defer again.Stop()
	for {
		select {
		case err := <-answers:
			if err != nil {
				return fmt.Errorf("%w: %w", ErrNotReady, err)
			}
			return nil
		case <-again.C:
			go ask()
		case <-ctx.Done():
			return fmt.Errorf("%w: no answer", ErrNotReady)
		}
	}
}

// voterURLs returns the client addresses of all voters that have published one, sorted.
func voterURLs(ctx context.Context, c *clientv3.Client) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, syncTry)
	defer cancel()
	resp, err := c.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return clientURLs(resp.Members), nil
}

func clientURLs(members []*etcdserverpb.Member) []string {
	var urls []string
	for _, m := range members {
		if !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	return sorted(unique(urls))
}

func readEndpoints(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("addresses of etcd: %w", err)
	}
	return strings.Fields(string(b)), nil
}

func writeEndpoints(file string, urls []string) error {
	if err := renameio.WriteFile(file, []byte(strings.Join(urls, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("addresses of etcd: %w", err)
	}
	return nil
}

// unique drops repetitions and keeps the order.
func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}
