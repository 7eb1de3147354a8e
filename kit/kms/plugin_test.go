package kms_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsv2 "k8s.io/kms/apis/v2"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/kms"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const patience = 2 * time.Minute

// service is a key management service with real keys, and the plugin before it on a real socket.
type service struct {
	kmsv2.UnimplementedKeyManagementServiceServer
	socket string
	server *grpc.Server

	mu       sync.Mutex
	keys     map[string]cipher.AEAD
	present  string
	hang     chan struct{} // nil: it answers
	decrypts int
	// Wrong answers; nil: the answer is right.
	status  func(*kmsv2.StatusResponse)
	encrypt func(*kmsv2.EncryptResponse)
	decrypt func(*kmsv2.DecryptResponse)
}

func start(t *testing.T) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // short, since the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{socket: filepath.Join(dir, "kms.sock"), keys: map[string]cipher.AEAD{}}
	s.rotate(t, "key-1")
	s.serve(t)
	t.Cleanup(s.die)
	return s
}

func (s *service) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	s.server = grpc.NewServer()
	kmsv2.RegisterKeyManagementServiceServer(s.server, s)
	go func() { _ = s.server.Serve(l) }()
}

func (s *service) die() { s.server.Stop() }

func (s *service) rotate(t *testing.T, id string) {
	t.Helper()
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	s.with(func() { s.keys[id], s.present = aead, id })
}

func (s *service) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// wait holds a call up while the service hangs.
func (s *service) wait() {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		<-hang // also beyond the call's deadline: an answer may not come just before it
	}
}

func (s *service) Status(_ context.Context, _ *kmsv2.StatusRequest) (*kmsv2.StatusResponse, error) {
	s.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &kmsv2.StatusResponse{Version: "v2", Healthz: "ok", KeyId: s.present}
	if s.status != nil {
		s.status(r)
	}
	return r, nil
}

func (s *service) Encrypt(_ context.Context, q *kmsv2.EncryptRequest) (*kmsv2.EncryptResponse, error) {
	s.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &kmsv2.EncryptResponse{
		Ciphertext: s.keys[s.present].Seal(nil, nil, q.GetPlaintext(), []byte("local.example.com")), KeyId: s.present,
		Annotations: map[string][]byte{"version.example.com": []byte("1")},
	}
	if s.encrypt != nil {
		s.encrypt(r)
	}
	return r, nil
}

func (s *service) Decrypt(_ context.Context, q *kmsv2.DecryptRequest) (*kmsv2.DecryptResponse, error) {
	s.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decrypts++
	key := s.keys[q.GetKeyId()]
	if key == nil || string(q.GetAnnotations()["version.example.com"]) != "1" {
		return nil, fmt.Errorf("unknown key %q", q.GetKeyId())
	}
	plain, err := key.Open(nil, nil, q.GetCiphertext(), []byte("local.example.com"))
	if err != nil {
		return nil, err
	}
	r := &kmsv2.DecryptResponse{Plaintext: plain}
	if s.decrypt != nil {
		s.decrypt(r)
	}
	return r, nil
}

// connect returns a client of the plugin that runs until the test ends. It seals for limit after the last good answer.
func (s *service) connect(t *testing.T, limit time.Duration) *kms.Plugin {
	t.Helper()
	p, err := kms.New("unix://"+s.socket, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	kms.Hurry(p, 20*time.Millisecond, limit)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.After(patience); !f(); {
		select {
		case <-limit:
			t.Fatalf("%s: not so after %v", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func ready(t *testing.T, p *kms.Plugin) {
	t.Helper()
	until(t, "the plugin answers", func() bool { _, err := p.Current(); return err == nil && p.Err() == nil })
}

func seal(t *testing.T, p store.Sealer, value string) (uint64, []byte) {
	t.Helper()
	key, sealed, err := p.Seal([]byte(value), []byte("/a/record"))
	if err != nil {
		t.Fatal(err)
	}
	return key, sealed
}

func opens(t *testing.T, p store.Sealer, key uint64, sealed []byte, want string) {
	t.Helper()
	if got, err := p.Open(key, sealed, []byte("/a/record")); err != nil || string(got) != want {
		t.Errorf("Open = %q, %v; want %q", got, err, want)
	}
}

func TestARecordSealedByAKMSIsReadOnlyThroughItAndInItsPlace(t *testing.T) {
	s := start(t)
	p := s.connect(t, time.Hour)
	ready(t, p)
	client, prefix := etcdtest.Client(t), etcdtest.Prefix(t)
	st := store.New(client, prefix, store.WithSealer(p))
	secret := []byte("a secret that etcd must not know")
	if _, err := st.Commit(t.Context(), store.PutSealed("secret", secret, 0)); err != nil {
		t.Fatal(err)
	}
	raw, err := client.Get(t.Context(), prefix+"secret")
	if err != nil || bytes.Contains(raw.Kvs[0].Value, secret) {
		t.Errorf("etcd holds %q (%v)", raw.Kvs[0].Value, err)
	}
	if _, err := client.Put(t.Context(), prefix+"moved", string(raw.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Get(t.Context(), "moved"); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("in another place: %v, want ErrUnreadable", err)
	}
	// Another process has the plugin unwrap the data key, once.
	var before int
	s.with(func() { before = s.decrypts })
	other := s.connect(t, time.Hour)
	again := store.New(client, prefix, store.WithSealer(other))
	ready(t, other)
	for range 10 {
		if r, err := again.Get(t.Context(), "secret"); err != nil || !bytes.Equal(r.Value, secret) {
			t.Errorf("Get = %q, %v", r.Value, err)
		}
	}
	s.with(func() {
		if n := s.decrypts - before; n != 2 { // and one to check its own data key
			t.Errorf("the plugin was asked %d times, want 2", n)
		}
	})
}

func TestAKMSThatHangsOrDiesSealsOnlyForAWhile(t *testing.T) {
	for name, end := range map[string]func(s *service){
		"hangs": func(s *service) { s.with(func() { s.hang = make(chan struct{}) }) },
		"dies":  func(s *service) { s.die() },
		"is unhealthy": func(s *service) {
			s.with(func() { s.status = func(r *kmsv2.StatusResponse) { r.Healthz = "HSM is away" } })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			p := s.connect(t, 500*time.Millisecond)
			ready(t, p)
			key, sealed := seal(t, p, "before")
			end(s)
			until(t, "new records are refused", func() bool {
				_, _, err := p.Seal([]byte("after"), nil)
				return err != nil && strings.Contains(err.Error(), "no good answer for")
			})
			if err := p.Err(); err == nil || !strings.Contains(err.Error(), s.socket) {
				t.Errorf("Err = %v", err)
			}
			opens(t, p, key, sealed, "before") // from memory
			if name == "hangs" {
				// A process that begins now opens nothing, and waits for no call for long.
				fresh := s.connect(t, time.Hour)
				if _, err := fresh.Open(key, sealed, []byte("/a/record")); err == nil {
					t.Error("a record was opened without the service")
				}
				if _, _, err := fresh.Seal(nil, nil); err == nil {
					t.Error("a record was sealed without the service")
				}
				if _, err := fresh.Current(); err == nil {
					t.Error("there is a key without the service")
				}
			}
			s.with(func() {
				if s.hang != nil {
					close(s.hang)
				}
				s.hang, s.status = nil, nil
			})
			if name == "dies" {
				s.rotate(t, "key-2") // it is back with another key, and still knows the first
				s.serve(t)
			}
			ready(t, p)
			opens(t, p, key, sealed, "before")
			now, again := seal(t, p, "after")
			opens(t, p, now, again, "after")
			if (now != key) != (name == "dies") {
				t.Errorf("sealed by %d, before by %d", now, key)
			}
		})
	}
}

func TestARotationInAKMSIsInForceSoonAndTheFormerKeyOpens(t *testing.T) {
	s := start(t)
	p := s.connect(t, time.Hour)
	ready(t, p)
	first, sealed := seal(t, p, "v")
	s.rotate(t, "key-2")
	until(t, "the new key is in force", func() bool { now, err := p.Current(); return err == nil && now != first })
	second, _ := seal(t, p, "v")
	if now, err := p.Current(); err != nil || second != now || second == first {
		t.Errorf("sealed by %d, in force is %d (%v), before by %d", second, now, err, first)
	}
	opens(t, p, first, sealed, "v")
	opens(t, s.connect(t, time.Hour), first, sealed, "v")
}

func TestWrongAnswersOfAKMSSealNothing(t *testing.T) {
	other := make([]byte, 32)
	for name, wrong := range map[string]func(s *service){
		"another version": func(s *service) { s.status = func(r *kmsv2.StatusResponse) { r.Version = "v3" } },
		"no key id":       func(s *service) { s.status = func(r *kmsv2.StatusResponse) { r.KeyId = "" } },
		"a long key id": func(s *service) {
			s.status = func(r *kmsv2.StatusResponse) {
				r.KeyId = strings.Repeat("k", 1024)
			}
		},
		"another key id at wrapping": func(s *service) { s.encrypt = func(r *kmsv2.EncryptResponse) { r.KeyId = "key-9" } },
		"no ciphertext":              func(s *service) { s.encrypt = func(r *kmsv2.EncryptResponse) { r.Ciphertext = nil } },
		"a long ciphertext": func(s *service) {
			s.encrypt = func(r *kmsv2.EncryptResponse) {
				r.Ciphertext = make([]byte, 1024)
			}
		},
		"long annotations": func(s *service) {
			s.encrypt = func(r *kmsv2.EncryptResponse) { r.Annotations["long.example.com"] = make([]byte, 32<<10) }
		},
		"garbage at wrapping": func(s *service) { s.encrypt = func(r *kmsv2.EncryptResponse) { r.Ciphertext[0] ^= 1 } },
		"a short key at unwrapping": func(s *service) {
			s.decrypt = func(r *kmsv2.DecryptResponse) {
				r.Plaintext = r.Plaintext[:16]
			}
		},
		"another key at unwrapping": func(s *service) { s.decrypt = func(r *kmsv2.DecryptResponse) { r.Plaintext = other } },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.with(func() { wrong(s) })
			p := s.connect(t, time.Hour)
			until(t, "the answer is refused", func() bool { return p.Err() != nil })
			if _, _, err := p.Seal(nil, nil); err == nil {
				t.Error("a record was sealed")
			}
			s.with(func() { s.status, s.encrypt, s.decrypt = nil, nil, nil })
			ready(t, p)
			key, sealed := seal(t, p, "v")
			opens(t, p, key, sealed, "v")
		})
	}
}

func TestAKeyThatWasUnwrappedWronglyIsAskedForAgain(t *testing.T) {
	s := start(t)
	p := s.connect(t, time.Hour)
	ready(t, p)
	key, sealed := seal(t, p, "v")
	fresh := s.connect(t, time.Hour)
	ready(t, fresh)
	s.with(func() { s.decrypt = func(r *kmsv2.DecryptResponse) { r.Plaintext = make([]byte, 32) } })
	if got, err := fresh.Open(key, sealed, []byte("/a/record")); err == nil {
		t.Fatalf("opened by another key as %q", got)
	}
	s.with(func() { s.decrypt = nil })
	opens(t, fresh, key, sealed, "v")
	// A record that was changed costs neither the key that seals nor its record.
	if got, err := p.Open(key, sealed, []byte("/another/record")); err == nil {
		t.Fatalf("opened in another place as %q", got)
	}
	opens(t, p, key, sealed, "v")
}

func TestRecordsMoveFromAKeyFileToAKMSAndBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := store.AddKey(path, time.Now()); err != nil {
		t.Fatal(err)
	}
	ring, err := store.OpenKeyRing(path)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t)
	p := s.connect(t, time.Hour)
	ready(t, p)
	byFile := kms.Beside{Sealer: ring, Plugin: p, Ring: ring}
	byKMS := kms.Beside{Sealer: p, Plugin: p, Ring: ring}
	first, inFile := seal(t, byFile, "file")
	second, inKMS := seal(t, byKMS, "kms")
	for _, both := range []kms.Beside{byFile, byKMS} {
		opens(t, both, first, inFile, "file")
		opens(t, both, second, inKMS, "kms")
		if now, err := both.Current(); err != nil || now != first && now != second {
			t.Errorf("Current = %d, %v", now, err)
		}
	}
	if first == second {
		t.Error("the key in the file and that of the service have one id")
	}
	if _, err := (kms.Beside{Sealer: p, Plugin: p}).Open(first, inFile, []byte("/a/record")); err == nil {
		t.Error("what the file has sealed opens without it")
	}
}

func TestRecordsThatAreCutOffOrChangedDoNotOpen(t *testing.T) {
	s := start(t)
	p := s.connect(t, time.Hour)
	ready(t, p)
	key, sealed := seal(t, p, "v")
	for n := range sealed {
		changed := bytes.Clone(sealed)
		changed[n] ^= 1
		for _, wrong := range [][]byte{sealed[:n], changed} {
			if got, err := p.Open(key, wrong, []byte("/a/record")); err == nil {
				t.Fatalf("byte %d: opened as %q", n, got)
			}
		}
	}
}

func TestAddressesOfPluginsAreUnixSockets(t *testing.T) {
	for _, address := range []string{
		"", "/run/kms.sock", "unix:kms.sock", "unix://kms.sock", "tcp://127.0.0.1:1",
		"127.0.0.1:1",
	} {
		if p, err := kms.New(address, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q is taken", address)
			_ = p.Close()
		}
	}
}
