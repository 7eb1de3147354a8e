// Package kms seals records by a key that a key management service holds, through a plugin that serves the KMS v2 API
// of Kubernetes on a Unix socket. The plugin wraps a data key that is made here; records are encrypted by that one with
// AES-256-GCM, and each carries the wrapped key. So records are sealed, and opened again, without a call of the plugin.
//
// What the plugin holds, and who may open its socket, is left to others.
package kms

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/dial"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	kmsv2 "k8s.io/kms/apis/v2"
)

const (
	pollEvery = 10 * time.Second // a key that the service rotates is in force here after this
	retryPoll = time.Second      // after a poll that failed
	callLimit = 3 * time.Second  // for an answer of the plugin, as Kubernetes has it
	// without a good answer: a key that may have been withdrawn seals no more, as Kubernetes has it
	sealLimit = 3 * time.Minute
	downFor   = time.Second // a plugin that did not answer is not asked for other keys during this time
	mostKeys  = 1024        // data keys in memory; there is one for each start and rotation

	dataKeyBytes = 32
	// Limits of the KMS v2 API.
	mostKeyID, mostCiphertext, mostAnnotations = 1 << 10, 1 << 10, 32 << 10

	// fromPlugin is set in the ids of all keys of plugins and in none of a key ring, which counts from 1.
	fromPlugin = uint64(1) << 63
)

var errNoAnswer = errors.New("it has not answered yet")

// Plugin is a store.Sealer whose key is that of a key management service. Make one with New; its methods may be called
// concurrently.
type Plugin struct {
	address string
	conn    *grpc.ClientConn
	client  kmsv2.KeyManagementServiceClient
	log     *slog.Logger
	every   time.Duration // between polls
	limit   time.Duration // for which it seals without a good answer

	unwrapping sync.Mutex // one data key is asked for at a time: what waits for it mostly waits for the same

	mu       sync.Mutex
	current  *dataKey               // that seals; nil before the first good answer
	opened   map[string]cipher.AEAD // by wrapped
	answered time.Time              // when the last good answer came
	err      error                  // why the last poll failed; nil if it did not
	down     time.Time              // when a data key was last asked for without an answer
}

// dataKey is a key that records are encrypted by.
type dataKey struct {
	id      uint64
	keyID   string // of the key that has wrapped it
	wrapped string // an encoded kmsv2.EncryptResponse
	aead    cipher.AEAD
}

// New returns a client of the plugin at an address such as unix:///run/kms.sock. It asks nothing before Run; Close it
// afterwards.
func New(address string, log *slog.Logger) (*Plugin, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); !ok || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("KMS plugin %q: want unix:///PATH", address)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<20)),
		dial.Reconnect(100*time.Millisecond, retryPoll, callLimit))
	if err != nil {
		return nil, fmt.Errorf("KMS plugin %q: %w", address, err)
	}
	return &Plugin{
		address: address, conn: conn, client: kmsv2.NewKeyManagementServiceClient(conn), log: log, every: pollEvery,
		limit:  sealLimit,
		opened: map[string]cipher.AEAD{},
	}, nil
}

// Close ends the connection to the plugin.
func (p *Plugin) Close() error { return p.conn.Close() }

// Run asks the plugin how it is, and for another data key wherever the service has another key, until ctx ends.
func (p *Plugin) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := p.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.mu.Lock()
		was := p.err
		p.err = err
		if err == nil {
			p.answered = time.Now()
		}
		p.mu.Unlock()
		wait := p.every
		switch {
		case err == nil && was != nil:
			p.log.InfoContext(ctx, "the KMS plugin answers", "address", p.address)
		case err != nil:
			wait = min(wait, retryPoll)
			if was == nil {
				p.log.WarnContext(ctx, "the KMS plugin fails", "address", p.address, "error", err)
			}
		}
		backoff.Sleep(ctx, wait)
	}
	return nil
}

// poll returns nil if the plugin is well and the data key in force is wrapped by the service's present key.
func (p *Plugin) poll(ctx context.Context) error {
	try, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := p.client.Status(try, &kmsv2.StatusRequest{})
	switch {
	case err != nil:
		return fmt.Errorf("status: %w", err)
	case s.GetVersion() != "v2" && s.GetVersion() != "v2beta1":
		return fmt.Errorf("status: version %q, want v2", s.GetVersion())
	case s.GetHealthz() != "ok":
		return fmt.Errorf("status: healthz is %q", s.GetHealthz())
	}
	if err := checkKeyID(s.GetKeyId()); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	p.mu.Lock()
	current := p.current
	p.mu.Unlock()
	if current != nil && current.keyID == s.GetKeyId() {
		return nil
	}
	fresh, err := p.newKey(ctx, s.GetKeyId())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.answered = fresh, time.Now()
	p.keep(fresh.wrapped, fresh.aead)
	p.log.InfoContext(ctx, "records are sealed by another key", "key_id", fresh.keyID)
	return nil
}

// newKey makes a data key and has it wrapped by the key keyID. It is in use only once the plugin has also unwrapped it:
// with one that wraps wrongly, what is sealed could never be opened again.
func (p *Plugin) newKey(ctx context.Context, keyID string) (*dataKey, error) {
	key := make([]byte, dataKeyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	try, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := p.client.Encrypt(try, &kmsv2.EncryptRequest{Plaintext: key, Uid: uuid.NewString()})
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	if err := checkWrapped(r); err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	if r.GetKeyId() != keyID {
		return nil, fmt.Errorf("encrypt: by key %q, while the status names %q", r.GetKeyId(), keyID)
	}
	back, err := p.unwrap(ctx, r)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(back, key) != 1 {
		return nil, errors.New("decrypt: what the plugin has wrapped comes back as something else")
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	wrapped, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return nil, err
	}
	return &dataKey{id: idOf(keyID), keyID: keyID, wrapped: string(wrapped), aead: aead}, nil
}

func checkKeyID(id string) error {
	if id == "" || len(id) >= mostKeyID {
		return fmt.Errorf("key_id of %d bytes, want 1 to %d", len(id), mostKeyID-1)
	}
	return nil
}

func checkWrapped(r *kmsv2.EncryptResponse) error {
	if n := len(r.GetCiphertext()); n == 0 || n >= mostCiphertext {
		return fmt.Errorf("ciphertext of %d bytes, want 1 to %d", n, mostCiphertext-1)
	}
	annotations := 0
	for k, v := range r.GetAnnotations() {
		annotations += len(k) + len(v)
	}
	if annotations >= mostAnnotations {
		return fmt.Errorf("annotations of %d bytes, want less than %d", annotations, mostAnnotations)
	}
	return checkKeyID(r.GetKeyId())
}

func (p *Plugin) unwrap(ctx context.Context, r *kmsv2.EncryptResponse) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	d, err := p.client.Decrypt(ctx, &kmsv2.DecryptRequest{
		Ciphertext: r.GetCiphertext(), Uid: uuid.NewString(), KeyId: r.GetKeyId(), Annotations: r.GetAnnotations(),
	})
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	return d.GetPlaintext(), nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	if len(key) != dataKeyBytes {
		return nil, fmt.Errorf("data key of %d bytes, want %d", len(key), dataKeyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// idOf returns the id of a service's key as the records' envelope has it.
func idOf(keyID string) uint64 {
	sum := sha256.Sum256([]byte(keyID))
	return binary.BigEndian.Uint64(sum[:]) | fromPlugin
}

// keep remembers a data key. The lock is held.
func (p *Plugin) keep(wrapped string, aead cipher.AEAD) {
	if len(p.opened) >= mostKeys {
		clear(p.opened)
	}
	p.opened[wrapped] = aead
}

// Err returns why new records cannot be sealed, or soon will not be; nil while the plugin answers, and before the first
// poll has ended.
func (p *Plugin) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failure(); err != nil {
		return fmt.Errorf("KMS plugin %s: %w", p.address, err)
	}
	return nil
}

// failure returns what is wrong with the plugin. The lock is held.
func (p *Plugin) failure() error {
	if p.err == nil && p.current != nil && time.Since(p.answered) > p.limit {
		return errNoAnswer // the poll under way has not ended
	}
	return p.err
}

// noKey says why there is no data key yet. The lock is held.
func (p *Plugin) noKey() error {
	if p.err == nil {
		return errNoAnswer
	}
	return p.err
}

// Current returns the id of the key in force.
func (p *Plugin) Current() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return 0, fmt.Errorf("KMS plugin %s: %w", p.address, p.noKey())
	}
	return p.current.id, nil
}

// Seal seals by the data key in force. It asks the plugin nothing, but refuses once that has not answered for three
// minutes.
func (p *Plugin) Seal(value, additional []byte) (uint64, []byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return 0, nil, fmt.Errorf("KMS plugin %s: no record is sealed: %w", p.address, p.noKey())
	}
	if silent := time.Since(p.answered); silent > p.limit {
		return 0, nil, fmt.Errorf("KMS plugin %s: no record is sealed, there is no good answer for %v: %w", p.address,
			silent.Round(time.Second), p.failure())
	}
	sealed := binary.AppendUvarint(nil, uint64(len(p.current.wrapped)))
	sealed = append(sealed, p.current.wrapped...)
	return p.current.id, p.current.aead.Seal(sealed, nil, value, additional), nil
}

// Open opens what any key of the service has sealed. Only a data key that is not in memory is asked for.
func (p *Plugin) Open(key uint64, sealed, additional []byte) ([]byte, error) {
	n, read := binary.Uvarint(sealed)
	if read <= 0 || n > uint64(len(sealed)-read) {
		return nil, errors.New("the record's data key is cut off")
	}
	wrapped, body := string(sealed[read:read+int(n)]), sealed[read+int(n):]
	aead, err := p.dataKey(key, wrapped)
	if err != nil {
		return nil, fmt.Errorf("KMS plugin %s: %w", p.address, err)
	}
	value, err := aead.Open(nil, nil, body, additional)
	if err != nil {
		p.forget(wrapped, aead)
		return nil, fmt.Errorf("sealed by a key of the KMS plugin %s: %w", p.address, err)
	}
	return value, nil
}

// forget drops a data key that did not open a record, unless it seals: a plugin that unwraps wrongly is asked again
// once it is well.
func (p *Plugin) forget(wrapped string, aead cipher.AEAD) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened[wrapped] == aead && (p.current == nil || p.current.aead != aead) {
		delete(p.opened, wrapped)
	}
}

// dataKey returns a data key from memory, or has the plugin unwrap it.
func (p *Plugin) dataKey(id uint64, wrapped string) (cipher.AEAD, error) {
	if aead, err := p.known(wrapped); aead != nil || err != nil {
		return aead, err
	}
	p.unwrapping.Lock()
	defer p.unwrapping.Unlock()
	if aead, err := p.known(wrapped); aead != nil || err != nil {
		return aead, err
	}
	var r kmsv2.EncryptResponse
	if err := proto.Unmarshal([]byte(wrapped), &r); err != nil {
		return nil, err
	}
	if err := checkWrapped(&r); err != nil {
		return nil, err
	}
	if idOf(r.GetKeyId()) != id {
		return nil, fmt.Errorf("the record names another key than %q", r.GetKeyId())
	}
	key, err := p.unwrap(context.Background(), &r)
	if err != nil {
		if c := status.Code(errors.Unwrap(err)); c == codes.Unavailable || c == codes.DeadlineExceeded {
			p.mu.Lock()
			p.down = time.Now()
			p.mu.Unlock()
		}
		return nil, err
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(wrapped, aead)
	return aead, nil
}

// known returns a data key that is in memory, or an error if the plugin did not answer a moment ago.
func (p *Plugin) known(wrapped string) (cipher.AEAD, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if aead := p.opened[wrapped]; aead != nil {
		return aead, nil
	}
	if !p.down.IsZero() && time.Since(p.down) < downFor {
		return nil, errors.New("decrypt: the plugin does not answer")
	}
	return nil, nil
}
