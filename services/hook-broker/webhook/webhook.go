// Package webhook calls the web servers that do the work of owners of hooks. It reaches only public and private
// addresses of other hosts, follows no redirect, and sends nothing that the cluster could be entered with.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/webhook"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

const (
	mostAnswer  = 64 << 10 // bytes
	shortestKey = 32       // bytes, of an owner's key
	keyPrefix   = "whsec_" // of a key in base64, as Standard Webhooks writes them
)

// Caller calls webhooks. Keys has a file for each owner, under the name of its HookOwner, with the key that signs what
// is sent to it: at least 32 bytes, or "whsec_" and their base64.
type Caller struct {
	Keys    string   // directory
	Allowed []string // addresses as webhook.Allowed describes them
	Now     func() time.Time

	// reach returns why an address may not be connected to; nil means reach.Allowed.
	reach func(netip.Addr) error
}

// Call posts a task to the webhook of its owner and returns the answer. ctx limits how long it may take.
func (c *Caller) Call(ctx context.Context, w *hookv1.HookWebhook, t *hookv1.HookTask) (plan.Answer, error) {
	var a plan.Answer
	if !webhook.Allowed(w.GetUrl(), c.Allowed) { // since it was stored, an administrator may have changed what is allowed
		return a, fmt.Errorf("%s is not allowed: see --webhook-allow of hook-broker", w.GetUrl())
	}
	body, err := protojson.Marshal(t)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.GetUrl(), bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if err := c.sign(req, t, body); err != nil {
		return a, err
	}
	transport, err := c.transport(w)
	if err != nil {
		return a, err
	}
	defer transport.CloseIdleConnections()
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	at := webhook.Shown(w.GetUrl()) // errors are in the status of the task, which more users read than its owner's address
	resp, err := client.Do(req)
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("%s: %w", at, failed.Err)
	}
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s answered %s, must be 200", at, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer+1))
	switch {
	case err != nil:
		return a, fmt.Errorf("read the answer of %s: %w", at, err)
	case len(raw) > mostAnswer:
		return a, fmt.Errorf("the answer of %s is longer than %d bytes", at, mostAnswer)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("the answer of %s: %w", at, err)
	}
	if err := a.Check(); err != nil {
		return a, fmt.Errorf("the answer of %s: %w", at, err)
	}
	return a, nil
}

// transport connects once, without a proxy: a proxy would connect to addresses that are not checked.
func (c *Caller) transport(w *hookv1.HookWebhook) (*http.Transport, error) {
	cfg, err := reach.TLS([]byte(w.GetCaBundle()))
	if err != nil {
		return nil, fmt.Errorf("spec.webhook.caBundle: %w", err)
	}
	return &http.Transport{
		Proxy: nil, DialContext: reach.Dialer(c.reach).DialContext, TLSClientConfig: cfg, DisableKeepAlives: true,
		MaxResponseHeaderBytes: mostAnswer, ForceAttemptHTTP2: true,
	}, nil
}

// sign adds the headers of Standard Webhooks 1.0.
func (c *Caller) sign(req *http.Request, t *hookv1.HookTask, body []byte) error {
	key, err := c.key(plan.OwnerName(t.GetSpec().GetOwner()))
	if err != nil {
		return err
	}
	id, at := t.GetMetadata().GetUid(), strconv.FormatInt(c.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "windlass-hook-broker")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", at)
	req.Header.Set("Webhook-Signature", "v1,"+signature(key, id, at, body))
	return nil
}

// signature returns the signature of a message, in base64.
func signature(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// key reads the key of an owner each time, so that a new one needs no restart.
func (c *Caller) key(name string) ([]byte, error) {
	if c.Keys == "" {
		return nil, errors.New("hook-broker has no keys of webhooks: set --webhook-keys")
	}
	root, err := os.OpenRoot(c.Keys)
	if err != nil {
		return nil, fmt.Errorf("--webhook-keys: %w", err)
	}
	defer root.Close()
	raw, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no key to sign with: write at least %d random bytes to %s/%s", shortestKey, c.Keys,
			name)
	}
	if err != nil {
		return nil, fmt.Errorf("--webhook-keys: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	if encoded, ok := strings.CutPrefix(text, keyPrefix); ok {
		if raw, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return nil, fmt.Errorf("key %s/%s: what follows %s is not base64", c.Keys, name, keyPrefix)
		}
	}
	if len(raw) < shortestKey {
		return nil, fmt.Errorf("key %s/%s has %d bytes, must have at least %d", c.Keys, name, len(raw), shortestKey)
	}
	return raw, nil
}
