package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/podconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// The credentials of a pod's service account, with users:
//
//	DIR/UID/account/       0755  agent's; its files are replaced at once, as those of a volume
//	  token                0640  the pod's; the agent reads it as its group, which no pod has
//	  ca.crt               0644  the authorities of the gateways
//	  gateways             0644  their endpoints, one a line
//	  namespace            0644  of the pod
const (
	accountDir    = "account"
	tokenFile     = "token"
	authorityFile = "ca.crt"
)

// accountPath is where an image has the directory.
const accountPath = "/var/run/secrets/windlass.dev/serviceaccount"

// Variables of containers, by which the windlass command finds the cluster.
const (
	envAccount   = "WINDLASS_SERVICEACCOUNT" // the directory
	envServer    = "WINDLASS_SERVER"         // the preferred endpoint when the container started
	envAuthority = "WINDLASS_CACERT"
)

const (
	maxToken = 16 << 10 // of the gateway's
	// renewalsSaid is how often the log repeats that tokens are not renewed.
	renewalsSaid = time.Minute
)

// apiToken is the token for the cluster's own API.
var apiToken = podconfig.Token{}

// accounts are the tokens of the pods. They are in memory, and in the files of the pods.
type accounts struct {
	mu    sync.Mutex
	known map[string]*tokens // by uid of the pod
	said  time.Time          // when it was logged last that tokens are not renewed; of one goroutine
}

type tokens struct {
	held    map[podconfig.Token]heldToken
	version int // counts the tokens that were received
}

type heldToken struct {
	text      string
	received  time.Time // zero if an earlier process of the agent received it
	authority string    // the authorities for which renew holds
	renew     time.Time
}

// texts returns the tokens of a pod, and a version that differs if one of them does.
func (a *accounts) texts(uid string) (map[podconfig.Token]string, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.known[uid]
	if of == nil {
		return nil, ""
	}
	out := map[podconfig.Token]string{}
	for t, h := range of.held {
		out[t] = h.text
	}
	return out, strconv.Itoa(of.version)
}

func (a *accounts) get(uid string, t podconfig.Token) heldToken {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.known[uid]; of != nil {
		return of.held[t]
	}
	return heldToken{}
}

func (a *accounts) set(uid string, t podconfig.Token, h heldToken) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[string]*tokens{}
	}
	of := a.known[uid]
	if of == nil {
		of = &tokens{held: map[podconfig.Token]heldToken{}}
		a.known[uid] = of
	}
	if of.held[t].text != h.text {
		of.version++
	}
	of.held[t] = h
}

// forget drops the tokens of other pods than these.
func (a *accounts) forget(live map[string]*schedulingv1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.known {
		if live[uid] == nil {
			delete(a.known, uid)
		}
	}
}

// mountsAccount reports whether the containers of a pod get the credentials of its service account.
func (s *Pods) mountsAccount(pod *schedulingv1.Pod) bool {
	auto := pod.GetSpec().AutomountServiceAccountToken
	return s.cfg.Gateways != nil && (auto == nil || *auto)
}

// loadTokens has a container that is about to start get the tokens of its pod. While the cluster does not answer, those
// that the pod has count, though they are expired: a container is restarted without the cluster, however long that is
// away. If the cluster says that there is no such account, the container waits for it.
func (s *Pods) loadTokens(ctx context.Context, pod *schedulingv1.Pod) error {
	err := s.renewTokens(ctx, pod)
	if err == nil || errors.Is(err, plan.ErrMissing) {
		return err
	}
	for _, t := range s.tokensOf(pod) {
		if s.accounts.get(pod.GetMetadata().GetUid(), t).text == "" {
			return err
		}
	}
	return nil
}

// tokensOf returns the tokens that a pod has.
func (s *Pods) tokensOf(pod *schedulingv1.Pod) []podconfig.Token {
	out := podconfig.Tokens(pod.GetSpec())
	if s.mountsAccount(pod) && !slices.Contains(out, apiToken) {
		out = append(out, apiToken)
	}
	return out
}

// renewTokens asks for the tokens of a pod that the agent does not have, or that are due to be renewed. A scheduler
// that knows no tokens yet gives pods none for its own API.
func (s *Pods) renewTokens(ctx context.Context, pod *schedulingv1.Pod) error {
	uid := pod.GetMetadata().GetUid()
	wanted := s.tokensOf(pod)
	if len(wanted) == 0 {
		return nil
	}
	authority, err := os.ReadFile(s.cfg.Authority)
	if err != nil {
		return err
	}
	for _, t := range wanted {
		have := s.accounts.get(uid, t)
		if have.text == "" && t == apiToken {
			have.text = s.writtenToken(uid)
		}
		if have.text != "" && have.authority != string(authority) {
			have = heldUnder(have.text, authority, have.received)
			s.accounts.set(uid, t, have)
		}
		if time.Now().Before(have.renew) {
			continue
		}
		asked := time.Now()
		next, err := s.askToken(ctx, pod, t)
		switch code := status.Code(err); {
		case err == nil:
			s.accounts.set(uid, t, heldUnder(next, authority, asked))
		case code == codes.Unimplemented && t == apiToken:
		case code == codes.NotFound, code == codes.FailedPrecondition:
			return missing(fmt.Errorf("%w: token of service account %q: %w", plan.ErrMissing,
				pod.GetSpec().GetServiceAccountName(), err))
		default:
			return err
		}
	}
	return nil
}

// heldUnder returns a token with when it is to be renewed: now, if the certificate that signed it is none of these
// authorities'. They were rotated, or scheduler signed it before it had its next certificate. A lifetime counts from
// when the token was received, by the agent's own clock, which a step does not change.
func heldUnder(text string, authority []byte, received time.Time) heldToken {
	h := heldToken{text: text, authority: string(authority), received: received}
	issued, expires, err := accounttoken.Validity(text, authority)
	if err != nil {
		return h
	}
	if received.IsZero() {
		received = issued
	}
	h.renew = plan.RenewAt(received, received.Add(expires.Sub(issued)), rand.Float64())
	return h
}

// writtenToken returns the token that an earlier process of the agent wrote for a pod, if there is one. The pod's user
// can change the file, which harms that pod alone.
func (s *Pods) writtenToken(uid string) string {
	f, err := os.Open(filepath.Join(s.dir(uid), accountDir, tokenFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return ""
	}
	return string(text)
}

func (s *Pods) askToken(ctx context.Context, pod *schedulingv1.Pod, t podconfig.Token) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	m := pod.GetMetadata()
	r, err := s.agents.CreatePodToken(ctx, &schedulingv1.CreatePodTokenRequest{
		NodeName: s.cfg.Node, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(), Audience: t.Audience,
		ExpirationSeconds: int32(t.Seconds),
	})
	return r.GetToken(), err
}

// accountVolume writes the credentials of a pod's service account, and returns their directory and the endpoint of the
// gateway that is preferred now; the directory is empty if the pod gets none.
func (s *Pods) accountVolume(pod *schedulingv1.Pod, user *process.User) (dir, gateway string, err error) {
	held := s.accounts.get(pod.GetMetadata().GetUid(), apiToken)
	if !s.mountsAccount(pod) || held.text == "" {
		return "", "", nil
	}
	gateways, err := s.cfg.Gateways()
	if err != nil {
		return "", "", err
	}
	dir = filepath.Join(s.dir(pod.GetMetadata().GetUid()), accountDir)
	if err := s.makeDir(dir); err != nil {
		return "", "", err
	}
	return dir, gateways[0], s.writeAccount(dir, pod, held.text, gateways, user)
}

func (s *Pods) writeAccount(dir string, pod *schedulingv1.Pod, token string, gateways []string,
	user *process.User,
) error {
	authority, err := os.ReadFile(s.cfg.Authority)
	if err != nil {
		return err
	}
	s.configs.mu.Lock() // files are written by one at a time
	defer s.configs.mu.Unlock()
	return writeConfig(dir, map[string]plan.File{
		tokenFile:     {Data: []byte(token), Mode: 0o640},
		authorityFile: {Data: authority, Mode: 0o644},
		"gateways":    {Data: []byte(strings.Join(gateways, "\n") + "\n"), Mode: 0o644},
		"namespace":   {Data: []byte(pod.GetMetadata().GetNamespace()), Mode: 0o644},
	}, user)
}

// refreshAccounts renews the tokens of running pods that are due, and writes what changed of their credentials. After
// the first call that the cluster did not answer, no others are made this time.
func (s *Pods) refreshAccounts(ctx context.Context, live map[string]*schedulingv1.Pod, user map[string]*process.User) {
	away := false
	var failed error
	for uid, pod := range live {
		dir := filepath.Join(s.dir(uid), accountDir)
		_, err := os.Stat(dir)
		mounted := err == nil
		if !mounted && len(podconfig.Tokens(pod.GetSpec())) == 0 {
			continue // it has no tokens, or none of its containers was started
		}
		if !away {
			err = s.renewTokens(ctx, pod)
			code := status.Code(err)
			away = code == codes.Unavailable || code == codes.DeadlineExceeded
		}
		if mounted {
			err = errors.Join(err, s.rewriteAccount(dir, pod, user[uid]))
		}
		if err != nil {
			failed = fmt.Errorf("pod %s/%s: %w", pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(), err)
		}
	}
	if failed != nil && ctx.Err() == nil && time.Since(s.accounts.said) >= renewalsSaid {
		s.accounts.said = time.Now()
		s.cfg.Log.WarnContext(ctx, "credentials of pods are not up to date", "error", failed)
	}
}

// rewriteAccount writes what changed of the credentials of a pod whose containers have them.
func (s *Pods) rewriteAccount(dir string, pod *schedulingv1.Pod, user *process.User) error {
	held := s.accounts.get(pod.GetMetadata().GetUid(), apiToken)
	if held.text == "" {
		return nil
	}
	gateways, err := s.cfg.Gateways()
	if err != nil {
		return err
	}
	return s.writeAccount(dir, pod, held.text, gateways, user)
}
