package pods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// CreatePodToken gives out real tokens. Their lifetime is that of the test.
func (c *cluster) CreatePodToken(_ context.Context, r *schedulingv1.CreatePodTokenRequest) (
	*schedulingv1.CreatePodTokenResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokenLife == 0 {
		return nil, status.Error(codes.Unimplemented, "a scheduler that knows no tokens")
	}
	if c.tokenErr != nil {
		return nil, c.tokenErr
	}
	var audiences []string
	if r.GetAudience() != "" {
		audiences = []string{r.GetAudience()}
	}
	c.tokens++
	text, token, err := accounttoken.NewSigner(c.signer).Sign(accounttoken.Account{
		Namespace: r.GetNamespace(), Name: "default", UID: "uid-default", Pod: r.GetName(), PodUID: r.GetUid(), Node: "m-0",
	}, audiences, c.tokenLife, time.Now())
	return &schedulingv1.CreatePodTokenResponse{Token: text, ExpiryTime: timestamppb.New(token.Expires)}, err
}

// rotate has another authority issue the certificate of the signer of tokens, and returns the authority.
func (c *cluster) rotate() *identity.Authority {
	c.t.Helper()
	a, err := identity.NewAuthority("windlass", 48*time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, key, err := a.Issue(identity.Request{
		CommonName: "scheduler", URI: identity.ServiceURI("scheduler"), Client: true, Server: true, Lifetime: 24 * time.Hour,
		NotBefore: time.Now().Add(-time.Minute),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	f := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	for path, data := range map[string][]byte{f.Cert: cert, f.Key: key, f.CA: a.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.authority, c.signer = a, f
	return a
}

// trust has a machine trust these authorities.
func (m *machine) trust(authorities ...*identity.Authority) {
	m.t.Helper()
	var pem []byte
	for _, a := range authorities {
		pem = append(pem, a.PEM()...)
	}
	if err := os.WriteFile(m.path("ca.crt"), pem, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// given returns how many tokens were given out.
func (c *cluster) given() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens
}

func (c *cluster) issue(life time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokenLife, c.tokenErr = life, err
}

func TestAContainerGetsTheCredentialsOfItsServiceAccount(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.issue(time.Minute, status.Error(codes.NotFound, `ServiceAccount "default" not found`))
	spec := &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(`{"volumes": [{"name": "v", "projected": {"defaultMode": 256, "sources": [
		{"serviceAccountToken": {"path": "vault/token", "audience": "vault"}}]}}]}`), spec); err != nil {
		t.Fatal(err)
	}
	pod := sh("a", `d=$WINDLASS_SERVICEACCOUNT
		echo "$WINDLASS_SERVER $(cat $d/namespace) $(cat $d/gateways | tr '\n' ' ')"
		cat $d/token; echo; cat $WINDLASS_VOLUME_V/vault/token; echo; cat $WINDLASS_CACERT; exec sleep 1000`)
	pod.Spec.Volumes = spec.Volumes
	pod.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}}
	c.add(pod)
	st := c.await("a", "waits for its token", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "CreateContainerConfigError"
	})
	if w := st.GetContainerStatuses()[0].GetState().GetWaiting(); !strings.Contains(w.GetMessage(),
		`ServiceAccount "default" not found`) {
		t.Errorf("it waits with %q", w.GetMessage())
	}
	c.issue(2*time.Second, nil) // so that it is renewed within the test
	c.await("a", "starts once there is one", ready)
	var log string
	eventually(t, "the container's output", func() bool {
		log = c.log("a", &schedulingv1.GetPodLogRequest{})
		return strings.Contains(log, string(c.authority.PEM()))
	})
	lines := strings.Split(log, "\n")
	if want := "127.0.0.1:6443 default 127.0.0.1:6443 127.0.0.2:6443 "; lines[0] != want {
		t.Errorf("%q, want %q", lines[0], want)
	}
	verifier := accounttoken.NewVerifier(c.signer)
	for i, audience := range []string{accounttoken.Audience, "vault"} {
		token, _, err := verifier.Verify(lines[1+i], audience, time.Now())
		if err != nil && !errors.Is(err, accounttoken.ErrExpired) || err == nil && token.Pod != "a" {
			t.Errorf("the token for %s is %q of %q, %v", audience, lines[1+i], token.Pod, err)
		}
	}
	dir := filepath.Join(m.path("pods"), pod.GetMetadata().GetUid(), accountDir)
	first, err := os.ReadFile(filepath.Join(dir, tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, tokenFile))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	eventually(t, "the token to be renewed, in the volume too", func() bool {
		next, err := os.ReadFile(filepath.Join(dir, tokenFile))
		projected, _ := os.ReadFile(filepath.Join(m.path("pods"), pod.GetMetadata().GetUid(), configDir, "v", "vault",
			"token"))
		return err == nil && string(next) != string(first) && !strings.Contains(log, string(projected))
	})
	c.issue(time.Hour, status.Error(codes.Unavailable, "away"))
}

// TestAContainerRestartsThoughItsTokenExpired has the cluster go away for longer than a token lives.
func TestAContainerRestartsThoughItsTokenExpired(t *testing.T) {
	for name, restart := range map[string]bool{"with its agent": false, "with the next agent": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			m := newMachine(t, c)
			_, stop := m.run()
			c.issue(2*time.Second, nil)
			c.add(sh("a", `echo start; exec sleep 1000`))
			c.await("a", "runs", ready)
			c.issue(time.Hour, status.Error(codes.Unavailable, "away"))
			expired := time.Now().Add(2 * time.Second)
			if restart {
				stop()
			}
			eventually(t, "the token to expire", func() bool { return time.Now().After(expired) })
			if restart {
				m.run()
			}
			for _, pid := range m.processes() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			eventually(t, "a second start", func() bool {
				return c.log("a", &schedulingv1.GetPodLogRequest{}) == "start\n" &&
					c.log("a", &schedulingv1.GetPodLogRequest{Previous: true}) == "start\n"
			})
		})
	}
}

// TestAContainerDoesNotStartWithoutItsAccount has the account be deleted while a container runs.
func TestAContainerDoesNotStartWithoutItsAccount(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.issue(2*time.Second, nil)
	c.add(sh("a", `exec sleep 1000`))
	c.await("a", "runs", ready)
	c.issue(time.Hour, status.Error(codes.NotFound, `ServiceAccount "default" not found`))
	due := time.Now().Add(2 * time.Second)
	eventually(t, "the token to be due", func() bool { return time.Now().After(due) })
	for _, pid := range m.processes() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	c.await("a", "waits for its account", func(st *schedulingv1.PodStatus) bool {
		for _, cs := range st.GetContainerStatuses() {
			w := cs.GetState().GetWaiting()
			return w.GetReason() == "CreateContainerConfigError" && strings.Contains(w.GetMessage(), "service account")
		}
		return false
	})
	c.issue(time.Hour, nil)
	c.await("a", "runs again", ready)
}

// TestATokenFollowsTheAuthorities rotates them: the next is trusted, then it signs, then the former is not trusted. The
// agent is replaced in between, and the cluster is away when the node learns of the end.
func TestATokenFollowsTheAuthorities(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	former := c.authority
	_, stop := m.run()
	c.issue(time.Hour, nil)
	pod := sh("a", `exec sleep 1000`)
	c.add(pod)
	c.await("a", "runs", ready)
	dir := filepath.Join(m.path("pods"), pod.GetMetadata().GetUid(), accountDir)
	written := func(file string) string {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	first, next := written(tokenFile), c.rotate()
	m.trust(former, next)
	both := string(former.PEM()) + string(next.PEM())
	eventually(t, "both authorities", func() bool { return written(authorityFile) == both })
	if n := c.given(); n != 1 || written(tokenFile) != first {
		t.Errorf("%d tokens were given out, though the first is good", n)
	}
	c.issue(time.Hour, status.Error(codes.Unavailable, "away"))
	m.trust(next)
	eventually(t, "the next authority", func() bool { return written(authorityFile) == string(next.PEM()) })
	stop()
	m.run()
	c.issue(time.Hour, nil)
	eventually(t, "a token that the next authority's certificate signed", func() bool {
		_, _, err := accounttoken.Validity(written(tokenFile), next.PEM())
		return err == nil
	})
}

func TestAPodWithoutAutomountGetsNoCredentials(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.issue(time.Hour, nil)
	pod := sh("a", `env | grep -c 'WINDLASS_\(SERVICEACCOUNT\|SERVER\|CACERT\)'; exec sleep 1000`)
	pod.Spec.AutomountServiceAccountToken = proto.Bool(false)
	c.add(pod)
	c.await("a", "runs", ready)
	eventually(t, "the container's output", func() bool {
		return c.log("a", &schedulingv1.GetPodLogRequest{}) == "0\n"
	})
	if _, err := os.Stat(filepath.Join(m.path("pods"), pod.GetMetadata().GetUid(), accountDir)); !os.IsNotExist(err) {
		t.Errorf("it has a directory of credentials: %v", err)
	}
}
