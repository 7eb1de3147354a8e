package harness

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/kit/identity"
)

// callPatience is for one call of any kind, a slow host included.
const callPatience = 2 * time.Minute

// Caller is a user or program that calls the cluster, by gRPC, REST, the command line or grpcurl.
type Caller struct {
	site  *site
	files identity.Files // Cert is empty for a caller without a certificate
	conn  *grpc.ClientConn
	http  *http.Client
}

// Admin is the cluster's administrator, as `windlass up` made it.
func (c *Cluster) Admin() *Caller {
	c.t.Helper()
	return c.known("admin", func() (identity.Files, error) {
		return identity.Files{Cert: c.Dir("admin", "tls.crt"), Key: c.Dir("admin", "tls.key"), CA: c.Dir("admin", "ca.crt")},
			nil
	})
}

// As is a user with a certificate of the cluster's authority.
func (c *Cluster) As(user string, groups ...string) *Caller {
	c.t.Helper()
	return c.known("user/"+user, func() (identity.Files, error) {
		return c.issue("user-"+user, identity.Request{
			CommonName: user, Organizations: groups, URI: identity.UserURI(user),
			Client: true,
		})
	})
}

// AsFor is a user with a certificate that lives for so long. Each call is another certificate.
func (c *Cluster) AsFor(lifetime time.Duration, user string, groups ...string) *Caller {
	c.t.Helper()
	who := fmt.Sprintf("%s-%d", user, time.Now().UnixNano())
	return c.known("user/"+who, func() (identity.Files, error) {
		return c.issue("user-"+who, identity.Request{
			CommonName: user, Organizations: groups, URI: identity.UserURI(user),
			Client: true, Lifetime: lifetime,
		})
	})
}

// Files are the caller's certificate, key and authority.
func (c *Caller) Files() identity.Files { return c.files }

// AsNode is the agent of a node, with the certificate that is in its machine's directory.
func (c *Cluster) AsNode(node string) *Caller {
	c.t.Helper()
	return c.known("node/"+node, func() (identity.Files, error) {
		pki := c.Dir("services", "provider-local", "machines", node, "pki")
		return identity.Files{
			Cert: filepath.Join(pki, "agent.crt"), Key: filepath.Join(pki, "agent.key"),
			CA: filepath.Join(pki, "ca.crt"),
		}, nil
	})
}

// With is a caller with the certificate and key in those files.
func (c *Cluster) With(cert, key, ca string) *Caller {
	c.t.Helper()
	return c.known("files/"+cert, func() (identity.Files, error) {
		return identity.Files{Cert: cert, Key: key, CA: ca},
			nil
	})
}

// Stranger is a caller with a certificate of another authority, which names an administrator.
func (c *Cluster) Stranger() *Caller {
	c.t.Helper()
	return c.known("stranger", func() (identity.Files, error) {
		other, err := identity.NewAuthority("windlass", time.Hour)
		if err != nil {
			return identity.Files{}, err
		}
		return c.issueBy(other, "stranger", identity.Request{
			CommonName: "admin", Organizations: []string{"system:masters"}, URI: identity.UserURI("admin"), Client: true,
		})
	})
}

// Anonymous is a caller without a certificate.
func (c *Cluster) Anonymous() *Caller {
	c.t.Helper()
	return c.known("anonymous", func() (identity.Files, error) {
		return identity.Files{CA: c.Dir("admin", "ca.crt")}, nil
	})
}

func (c *Cluster) known(who string, files func() (identity.Files, error)) *Caller {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.callers[who]; have != nil {
		return have
	}
	f, err := files()
	if err != nil {
		c.t.Fatalf("%s: %v", who, err)
	}
	made := &Caller{site: c.site, files: f}
	if err := made.connect(); err != nil {
		c.t.Fatalf("%s: %v", who, err)
	}
	c.callers[who] = made
	c.closers = append(c.closers, made.conn)
	return made
}

func (c *Cluster) issue(name string, r identity.Request) (identity.Files, error) {
	authority, err := identity.LoadAuthority(c.Dir("pki"), "windlass")
	if err != nil {
		return identity.Files{}, err
	}
	return c.issueBy(authority, name, r)
}

// issueBy writes a certificate beside the cluster, where the renewal of the cluster's own does not look.
func (c *Cluster) issueBy(a *identity.Authority, name string, r identity.Request) (identity.Files, error) {
	if r.Lifetime == 0 {
		r.Lifetime = 24 * time.Hour
	}
	certPEM, keyPEM, err := a.Issue(r)
	if err != nil {
		return identity.Files{}, err
	}
	dir := filepath.Join(c.home, "callers")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return identity.Files{}, err
	}
	f := identity.Files{
		Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"),
		CA: c.Dir("admin", "ca.crt"),
	}
	if err := os.WriteFile(f.Cert, certPEM, 0o600); err != nil {
		return f, err
	}
	return f, os.WriteFile(f.Key, keyPEM, 0o600)
}

// TLS returns the caller's settings, which are the test's to change.
func (c *Caller) TLS() (*tls.Config, error) {
	if c.files.Cert == "" {
		return identity.TrustOnly(c.files.CA)
	}
	host, _, err := net.SplitHostPort(c.site.Gateway())
	if err != nil {
		return nil, err
	}
	return c.files.ClientTLS(host) // follows the files: an authority may be rotated
}

func (c *Caller) connect() error {
	cfg, err := c.TLS()
	if err != nil {
		return err
	}
	if c.conn, err = dial(c.site.Gateway(), cfg); err != nil {
		return err
	}
	c.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig: cfg.Clone(), MaxIdleConnsPerHost: 64,
		DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
	}}
	return nil
}

func dial(address string, cfg *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 100 * time.Millisecond,
			},
			MinConnectTimeout: 2 * time.Second,
		}))
}

// Conn is the caller's gRPC connection to the gateway.
func (c *Caller) Conn() *grpc.ClientConn { return c.conn }

// Direct returns a connection past the gateway to one of the cluster's programs.
func (c *Caller) Direct(port int) (*grpc.ClientConn, error) {
	cfg, err := c.TLS()
	if err != nil {
		return nil, err
	}
	conn, err := dial(c.site.Address(port), cfg)
	if err == nil {
		c.site.mu.Lock()
		c.site.closers = append(c.site.closers, conn)
		c.site.mu.Unlock()
	}
	return conn, err
}

// Dial returns a connection to another gateway, which the test closes.
func (c *Caller) Dial(address string) (*grpc.ClientConn, error) {
	cfg, err := c.TLS()
	if err != nil {
		return nil, err
	}
	return dial(address, cfg)
}

// HTTP is the caller's client for REST.
func (c *Caller) HTTP() *http.Client { return c.http }

// Response is the answer to a REST call.
type Response struct {
	Code   int
	Body   []byte
	Header http.Header
}

// REST calls the gateway. The error is that there was no answer.
func (c *Caller) REST(ctx context.Context, method, path, contentType string, body []byte, headers ...string) (Response,
	error,
) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.site.Gateway()+path, bytes.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.Host = req.Header.Get("Host") // empty means that of the address
	resp, err := c.http.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return Response{resp.StatusCode, data, resp.Header}, err
}

// CLI runs the command line as the caller, with text as its standard input.
func (c *Caller) CLI(stdin string, args ...string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	return run(c.Program(ctx, c.site.bin, args...), stdin)
}

// Program is an executable that speaks to the cluster as the caller.
func (c *Caller) Program(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(c.site.environment(), "WINDLASS_SERVER="+c.site.Gateway(), "WINDLASS_CACERT="+c.files.CA)
	if c.files.Cert != "" {
		cmd.Env = append(cmd.Env, "WINDLASS_CERT="+c.files.Cert, "WINDLASS_KEY="+c.files.Key)
	}
	return cmd
}

// Grpcurl runs grpcurl against the gateway as the caller. flags come before the address, rest after it.
func (c *Caller) Grpcurl(stdin string, flags []string, rest ...string) (Result, error) {
	path, err := Tool("grpcurl")
	if err != nil {
		return Result{}, err
	}
	args := append([]string{"-cacert", c.files.CA}, flags...)
	if c.files.Cert != "" {
		args = append(args, "-cert", c.files.Cert, "-key", c.files.Key)
	}
	args = append(args, c.site.Gateway())
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	return run(exec.CommandContext(ctx, path, append(args, rest...)...), stdin)
}

// CLI runs the command line as the administrator, with no input.
func (c *Cluster) CLI(args ...string) Result {
	c.t.Helper()
	r, err := c.Admin().CLI("", args...)
	if err != nil {
		c.t.Fatalf("windlass %v: %v", args, err)
	}
	return r
}

// MustCLI runs the command line as the administrator and returns what it printed; the test fails if it did.
func (c *Cluster) MustCLI(args ...string) string {
	c.t.Helper()
	r := c.CLI(args...)
	if r.Code != 0 {
		c.t.Fatalf("windlass %v: exit code %d\n%s%s", args, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Conn is the administrator's gRPC connection to the gateway.
func (c *Cluster) Conn() *grpc.ClientConn { return c.Admin().Conn() }

// String names the caller in the texts of failures.
func (c *Caller) String() string { return fmt.Sprintf("caller with %q", filepath.Base(c.files.Cert)) }
