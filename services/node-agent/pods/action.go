package pods

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/process"
)

const (
	// maxAnswer is how much of an answer, or of a command's output, is read. Source: Kubernetes' maxRespBodyLength.
	maxAnswer    = 10 << 10
	maxHeaders   = 64 << 10
	maxRedirects = 10
	maxWords     = 512 // of an answer in a message

	// userAgent begins as that of Kubernetes, which servers know.
	userAgent = "kube-probe/windlass"
)

// target is a start of a container that something is done with.
type target struct {
	container        // a copy
	uid       string // of its pod
	name      string // of the container
	host      string // the pod's address
}

// answer is what an action came to: whether it succeeded, and what there is to say.
type answer struct {
	ok      bool
	message string
	warning string // although it succeeded
}

func failed(format string, args ...any) answer { return answer{message: fmt.Sprintf(format, args...)} }

// perform does an action. An error means that it could not be done, which says nothing about the container. hook says
// that it is a hook: any answer to a request counts then. Source: Kubernetes, pkg/probe and pkg/kubelet/lifecycle.
func (s *Pods) perform(ctx context.Context, t target, a lifecycle.Action, hook bool) (answer, error) {
	switch {
	case a.Exec != nil:
		return s.driverOf(&t.container).command(ctx, t, a.Exec)
	case a.HTTP != nil:
		return get(ctx, t.host, a.HTTP, hook), nil
	case a.TCP != nil:
		return connect(ctx, t.host, a.TCP), nil
	case a.GRPC != nil:
		return check(ctx, t.host, a.GRPC), nil
	case a.Sleep != nil:
		timer := time.NewTimer(*a.Sleep)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return answer{ok: true}, nil
	}
	return answer{}, errors.New("no action")
}

// head keeps the beginning of what is written to it.
type head struct{ bytes.Buffer }

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	_, _ = h.Buffer.Write(p[:min(len(p), maxAnswer-h.Len())])
	return len(p), nil
}

func (d *processes) command(ctx context.Context, t target, command []string) (answer, error) {
	path, err := commandPath(t.container, command[0])
	if err != nil {
		return failed("%v", err), nil
	}
	cmd := exec.CommandContext(ctx, path, command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = t.Spec.Dir, slices.Clone(t.Spec.Env), execPatience
	cmd.Cancel = func() error { return process.SignalGroup(cmd.Process, syscall.SIGKILL) }
	var out head
	cmd.Stdout, cmd.Stderr = &out, &out // the same writer: it is not called concurrently
	if err := d.StartBeside(t.Spec.Name, cmd, t.Spec.User); err != nil {
		if errors.Is(err, process.ErrNoProcess) || ctx.Err() != nil {
			return answer{}, err
		}
		return failed("%v", err), nil
	}
	err = cmd.Wait()
	var ended *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failed("command timed out: %q", strings.Join(command, " ")), nil
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return answer{ok: true}, nil
	case errors.As(err, &ended):
		text := fmt.Sprintf("command %q exited with %d: %s", strings.Join(command, " "), ended.ExitCode(), words(out.Bytes()))
		return answer{message: strings.TrimRight(text, ": \n")}, nil
	}
	return answer{}, err
}

// words makes a text for people of what a pod answered.
func words(b []byte) string {
	return strings.ToValidUTF8(string(b[:min(len(b), maxWords)]), "\uFFFD")
}

func hostPort(host, own string, port int) string {
	if host == "" {
		host = own
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// get sends a request. Redirects are followed on the same host only; any other is a success with a warning.
func get(ctx context.Context, own string, h *lifecycle.HTTP, hook bool) answer {
	u, err := url.Parse(h.Path)
	if err != nil {
		u = &url.URL{Path: h.Path}
	}
	u.Scheme, u.Host = "http", hostPort(h.Host, own, h.Port)
	if h.TLS {
		u.Scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return failed("%v", err)
	}
	for i, name := range h.HeaderName {
		if r.Header.Add(name, h.HeaderText[i]); http.CanonicalHeaderKey(name) == "Host" {
			r.Host = h.HeaderText[i]
		}
	}
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header.Set("User-Agent", userAgent)
	}
	if accept, ok := r.Header["Accept"]; !ok {
		r.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		r.Header.Del("Accept")
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // a probe has no authority that it could verify against
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if r.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= maxRedirects {
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		return nil
	}}
	answered, err := client.Do(r)
	if err != nil {
		return failed("%v", err)
	}
	defer answered.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answered.Body, maxAnswer))
	switch code := answered.StatusCode; {
	case hook:
		return answer{ok: true}
	case err != nil:
		return failed("%v", err)
	case code >= http.StatusBadRequest || code < http.StatusOK:
		return failed("HTTP probe failed with statuscode: %d", code)
	case code >= http.StatusMultipleChoices:
		return answer{ok: true, warning: fmt.Sprintf("Probe terminated redirects, Response body: %s", words(body))}
	}
	return answer{ok: true}
}

func connect(ctx context.Context, own string, t *lifecycle.TCP) answer {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", hostPort(t.Host, own, t.Port))
	if err != nil {
		return failed("%v", err)
	}
	_ = conn.Close()
	return answer{ok: true}
}

func check(ctx context.Context, own string, g *lifecycle.GRPC) answer {
	conn, err := grpc.NewClient("passthrough:///"+hostPort("", own, g.Port), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithMaxHeaderListSize(maxHeaders))
	if err != nil {
		return failed("%v", err)
	}
	defer conn.Close()
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: g.Service})
	switch st := status.Convert(err); {
	case err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return answer{ok: true}
	case err == nil:
		return failed("service unhealthy (responded with %q)", r.GetStatus())
	case st.Code() == codes.Unimplemented:
		return failed("this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
			words([]byte(st.Message())))
	default:
		return failed("health rpc probe failed: %s", words([]byte(st.Message())))
	}
}
