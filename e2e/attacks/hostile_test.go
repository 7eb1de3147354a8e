package attacks

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // what the attacker sends
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// hostileMemory is what the gateway may take more while it refuses; a request is at most 4 MiB.
const hostileMemory = 64 << 20

func TestHostileRequestsAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	const (
		json      = "application/json"
		node      = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"hostile"}`
		strategic = "application/strategic-merge-patch+json"
	)
	for name, a := range map[string]struct {
		method, path, media string
		body                string
		headers             []string
		codes               []int
	}{
		"JSON of many levels":       {"POST", "/v1/nodes", json, strings.Repeat(`{"a":`, 100_000), nil, []int{400}},
		"JSON of a million levels":  {"POST", "/v1/nodes", json, strings.Repeat(`{"a":`, 700_000), nil, []int{413}},
		"lists of many levels":      {"POST", "/v1/nodes", json, strings.Repeat("[", 100_000), nil, []int{400}},
		"lists of a million levels": {"POST", "/v1/nodes", json, strings.Repeat("[", 1_000_000), nil, []int{413}},
		"a patch of many levels": {
			"PATCH", "/v1/nodes/none", strategic, strings.Repeat(`{"a":`, 100_000), nil,
			[]int{400, 404},
		},
		"a patch of a million levels": {
			"PATCH", "/v1/nodes/none", strategic, strings.Repeat(`{"a":`, 700_000), nil,
			[]int{413},
		},
		"YAML of a million levels": {
			"POST", "/v1/nodes", "application/yaml", strings.Repeat("[", 1_000_000), nil,
			[]int{400},
		},
		"a million fields": {"POST", "/v1/nodes", json, node + `,"spec":{` +
			strings.Repeat(`"x":1,`, 500_000) + `"y":1}}`, nil, []int{400}},
		"a body that is too large": {"POST", "/v1/nodes", json, strings.Repeat(" ", 5<<20), nil, []int{413}},
		"a number that is none": {
			"POST", "/v1/nodes", json, node + `,"status":{"capacity":{"cpu":NaN}}}`, nil,
			[]int{400},
		},
		"invalid UTF-8": {"POST", "/v1/nodes", json, node[:len(node)-1] + `,"labels":{"a":"` +
			"\xff\xfe" + `"}}}`, nil, []int{400}},
		"a duration beyond every clock": {"GET", "/v1/nodes?timeout=999999999999999999999s", "", "", nil, []int{400}},
		"a path out of the tree":        {"GET", "/v1/nodes/..%2f..%2f..%2fetc%2fpasswd", "", "", nil, []int{400, 404}},
		"a path with dots":              {"GET", "/v1/../../etc/passwd", "", "", nil, []int{301, 307, 400, 404}},
		"a path with a zero byte":       {"GET", "/v1/nodes/a%00b", "", "", nil, []int{400, 404}},
		"a name that is empty":          {"GET", "/v1/nodes/", "", "", nil, []int{404}},
		"a page of another site": {
			"POST", "/v1/nodes", "text/plain", node + "}",
			[]string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"},
			[]int{403},
		},
		"a page whose name leads to the gateway": {
			"POST", "/v1/nodes", json, node + "}",
			[]string{"Host", "evil.example", "Origin", "https://evil.example", "Sec-Fetch-Site", "same-origin"},
			[]int{403},
		},
		"text instead of JSON": {"POST", "/v1/nodes", "text/plain", node + "}", nil, []int{415}},
		"a form": {
			"POST", "/v1/nodes", "application/x-www-form-urlencoded", "a=b", nil,
			[]int{415},
		},
		"gRPC-Web": {
			"POST", "/windlass.node.v1.NodeService/ListNodes",
			"application/grpc-web+proto", "\x00\x00\x00\x00\x00", nil,
			[]int{404, 415},
		},
		"another method by a header": {
			"POST", "/v1/nodes/none", json, "",
			[]string{"X-HTTP-Method-Override", "DELETE"},
			[]int{405},
		},
		"compressed JSON, which is not read": {
			"POST", "/v1/nodes", json, "\x1f\x8b\x08",
			[]string{"Content-Encoding", "gzip"},
			[]int{400, 415},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bounded(t, c, hostileMemory, func() {
				got, err := c.Admin().REST(context.Background(), a.method, a.path, a.media, []byte(a.body), a.headers...)
				if err != nil {
					t.Fatal(err)
				}
				for _, code := range a.codes {
					if got.Code == code {
						return
					}
				}
				t.Errorf("%d, want one of %v: %.300s", got.Code, a.codes, got.Body)
			})
		})
	}
}

// raw is a message as bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil } //nolint:forcetypeassert // the test's own
func (raw) Unmarshal([]byte, any) error   { return nil }
func (raw) Name() string                  { return "proto" }

func TestABombOfGzipIsNotUnpacked(t *testing.T) {
	c := shared.Cluster(t)
	bounded(t, c, hostileMemory, func() {
		for _, conn := range []*grpc.ClientConn{c.Conn(), c.Anonymous().Conn()} {
			err := conn.Invoke(context.Background(), "/windlass.node.v1.NodeService/CreateNode", make([]byte, 256<<20),
				new([]byte),
				grpc.ForceCodec(raw{}), grpc.UseCompressor("gzip"),
				grpc.MaxCallSendMsgSize(1<<30)) //nolint:staticcheck // bytes as they are
			if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unauthenticated {
				t.Errorf("256 MiB of zeros, compressed: %v", err)
			}
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write(make([]byte, 256<<20)) //nolint:errcheck // into memory
		w.Close()                      //nolint:errcheck
		got, err := c.Admin().REST(context.Background(), "POST", "/v1/nodes", "application/json", packed.Bytes(),
			"Content-Encoding", "gzip")
		if err != nil || got.Code < 400 || got.Code > 499 {
			t.Errorf("256 MiB of zeros, compressed, over REST: %d, %v", got.Code, err)
		}
	})
}

func TestIdentityCannotBeForged(t *testing.T) {
	c := shared.Cluster(t)
	mallory := c.As("mallory")
	forged := []string{
		"windlass-user", "admin", "windlass-groups", "system:masters", "windlass-caller", "admin",
		"x-remote-user", "admin", "x-remote-group", "system:masters",
	}
	ctx := metadata.AppendToOutgoingContext(context.Background(), forged...)
	who, err := metav1.NewAccessServiceClient(mallory.Conn()).WhoAmI(ctx, &metav1.WhoAmIRequest{})
	if err != nil || who.GetUser() != "mallory" {
		t.Errorf("over gRPC: %v, %v", who, err)
	}
	if _, err := nodev1.NewNodeServiceClient(mallory.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("nodes over gRPC: %v", err)
	}
	var headers []string
	for i := 0; i < len(forged); i += 2 {
		headers = append(headers, forged[i], forged[i+1], "Grpc-Metadata-"+forged[i], forged[i+1])
	}
	got, err := mallory.REST(context.Background(), "GET", "/v1/nodes", "", nil, headers...)
	if err != nil || got.Code != http.StatusForbidden {
		t.Errorf("nodes over REST: %d %s, %v", got.Code, got.Body, err)
	}
}

// slow makes a TLS connection without credentials.
func slow(t *testing.T, address string, protocols ...string) net.Conn {
	t.Helper()
	conn,
		err := tls.Dial("tcp", address,
		&tls.Config{InsecureSkipVerify: true, NextProtos: protocols}) //nolint:gosec // an attacker does not care
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// closes fails the test unless the other side closes a connection.
func closes(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the longest limit is ten seconds
	_, err := io.Copy(io.Discard, conn)
	if timeout := net.Error(nil); err != nil && asTimeout(err, &timeout) {
		t.Errorf("%s: the connection is still open", what)
	}
}

func asTimeout(err error, into *net.Error) bool {
	found, ok := err.(net.Error) //nolint:errorlint // the connection's own
	if ok {
		*into = found
	}
	return ok && found.Timeout()
}

func TestSlowAndHalfOpenClientsLoseTheirConnections(t *testing.T) {
	c := shared.Cluster(t)
	t.Run("at a time", func(t *testing.T) {
		for name, attack := range map[string]func(*testing.T) net.Conn{
			"no handshake": func(t *testing.T) net.Conn {
				conn, err := net.Dial("tcp", c.Gateway())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				return conn
			},
			"headers byte by byte": func(t *testing.T) net.Conn {
				conn := slow(t, c.Gateway(), "http/1.1")
				fmt.Fprint(conn, "GET /v1/nodes HTTP/1.1\r\nHost: a\r\nX-Slow: ")
				go func() {
					for range 100 {
						if _, err := conn.Write([]byte("a")); err != nil {
							return
						}
						<-time.After(200 * time.Millisecond)
					}
				}()
				return conn
			},
			"a body that never comes": func(t *testing.T) net.Conn {
				conn := slow(t, c.Gateway(), "http/1.1")
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{",
					joinPath)
				return conn
			},
			"no preface": func(t *testing.T) net.Conn { return slow(t, c.Gateway(), "h2") },
			"headers without end": func(t *testing.T) net.Conn {
				conn := slow(t, c.Gateway(), "http/1.1")
				go func() {
					fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n")
					line := []byte("X-Bomb: " + strings.Repeat("a", 8<<10) + "\r\n")
					for range 2000 {
						if _, err := conn.Write(line); err != nil {
							return
						}
					}
				}()
				return conn
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				closes(t, name, attack(t))
			})
		}
	})
}
