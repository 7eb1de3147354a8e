package release

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// host is another host as a test wants it: also one that sends anything.
type host struct {
	updatev1.UnimplementedReleaseServiceServer
	send   func(ctx context.Context, digest string, piece func([]byte) error) error
	signed [][]byte
	asked  atomic.Int64
}

func (h *host) ReadReleaseImage(r *updatev1.ReadReleaseImageRequest,
	stream grpc.ServerStreamingServer[updatev1.ReadReleaseImageResponse],
) error {
	h.asked.Add(1)
	return h.send(stream.Context(), r.GetDigest(), func(p []byte) error {
		return stream.Send(&updatev1.ReadReleaseImageResponse{Data: p})
	})
}

func (h *host) ListReleaseSignatures(context.Context, *updatev1.ListReleaseSignaturesRequest) (
	*updatev1.ListReleaseSignaturesResponse, error,
) {
	h.asked.Add(1)
	return &updatev1.ListReleaseSignaturesResponse{Signatures: h.signed}, nil
}

// sends returns a host that sends these bytes whatever it is asked for.
func sends(content []byte) *host {
	return &host{send: func(_ context.Context, _ string, piece func([]byte) error) error { return piece(content) }}
}

// lacks returns a host without images.
func lacks() *host {
	return &host{send: func(context.Context, string, func([]byte) error) error {
		return status.Error(codes.NotFound, "not here")
	}}
}

// peer runs a host and returns how it is called.
func (h *host) peer(t testing.TB, name string) Peer {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	updatev1.RegisterReleaseServiceServer(server, h)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return Peer{Name: name, Dial: func() (PeerConn, error) {
		return grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	}}
}

// away is a host that cannot be reached.
func away(name string) Peer {
	return Peer{Name: name, Dial: func() (PeerConn, error) { return nil, errors.New("no route") }}
}

// at are places that have images on other hosts alone.
func at(t testing.TB, peers ...Peer) Places {
	return Places{
		Layouts: []string{filepath.Join(t.TempDir(), "images")}, Spool: filepath.Join(t.TempDir(), "spool"),
		Elsewhere: func() []Peer { return peers },
	}
}

// contentOf returns the content of an image of a layout.
func contentOf(t testing.TB, ref string, places Places) []byte {
	t.Helper()
	image, err := Open(t.Context(), ref, places)
	check(t, err)
	content, err := image.Content(1 << 20)
	check(t, err)
	return content
}

func TestAnImageIsReadFromAnotherHost(t *testing.T) {
	here, refs := contentCases(t)
	for what, ref := range refs {
		t.Run(what, func(t *testing.T) {
			content := contentOf(t, ref, here)
			has := sends(content)
			places := at(t, away("host a"), lacks().peer(t, "host b"), has.peer(t, "host c"))
			image, err := Open(t.Context(), ref, places)
			check(t, err)
			if entries, err := os.ReadDir(places.Spool); err != nil || len(entries) > 0 {
				t.Errorf("%v in the directory of images in use, %v", entries, err)
			}
			got, err := Load(image)
			check(t, err)
			again, err := image.Content(1 << 20)
			check(t, err)
			if _, digest, _ := strings.Cut(ref, "@"); got.Digest != digest || image.Reference != ref ||
				!bytes.Equal(again, content) {
				t.Errorf("it is %s as %s", got.Digest, image.Reference)
			}
			places.Layouts = here.Layouts
			_, err = Open(t.Context(), ref, places)
			check(t, err)
			if has.asked.Load() != 1 {
				t.Errorf("the host was asked %d times, also for what is here", has.asked.Load())
			}
		})
	}
}

// What a host sends counts by its digests alone, and the next host is asked.
func TestWhatAnotherHostChangedIsRefused(t *testing.T) {
	here, refs := contentCases(t)
	for what, ref := range refs {
		t.Run(what, func(t *testing.T) {
			content := contentOf(t, ref, here)
			want, err := OpenContent(ref, content)
			check(t, err)
			release, err := Load(want)
			check(t, err)
			for n := 0; n < len(content); n += 97 {
				changed := bytes.Clone(content)
				changed[n] ^= 0x55
				image, err := Open(t.Context(), ref, at(t, sends(changed).peer(t, "host a")))
				if err != nil {
					if errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "host a: ") {
						t.Errorf("byte %d was changed: %v", n, err)
					}
					continue
				}
				if got, err := Load(image); err != nil || got.VersionHash != release.VersionHash {
					t.Fatalf("byte %d was changed: %v", n, err)
				}
			}
			for n := range 4 {
				cut := content[:n*len(content)/4]
				image, err := Open(t.Context(), ref, at(t, sends(cut).peer(t, "host a"), sends(content).peer(t, "host b")))
				check(t, err)
				_, err = Load(image)
				check(t, err)
			}
		})
	}
}

// tarOf is an archive of parts by their digests.
func tarOf(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, p := range parts {
		check(t, w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("sha256:%x", sha256.Sum256(p)), Size: int64(len(p)),
		}))
		_, err := w.Write(p)
		check(t, err)
	}
	check(t, w.Close())
	return out.Bytes()
}

// headerOf is the head of a part, without its content.
func headerOf(t testing.TB, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	h.Name = sha
	check(t, tar.NewWriter(&out).WriteHeader(&h))
	return out.Bytes()
}

func TestAnotherHostIsTrustedInNothing(t *testing.T) {
	here, refs := contentCases(t)
	var many [][]byte
	for i := range maxParts + 1 {
		many = append(many, []byte(fmt.Sprint(i)))
	}
	// The library reads as many zeros as the size says, and writes no such record.
	holes := bytes.ReplaceAll(headerOf(t, tar.Header{Typeflag: tar.TypeReg, PAXRecords: map[string]string{
		"XNU.sparse.map": "0,0", "XNU.sparse.numblocks": "1", "XNU.sparse.size": fmt.Sprint(int64(math.MaxInt64)),
		"XNU.sparse.name": sha,
	}}), []byte("XNU"), []byte("GNU"))
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"nothing":            {nil, "it sends another image"},
		"an empty archive":   {tarOf(t), "it sends another image"},
		"another image":      {contentOf(t, refs["an index"], here), "it sends another image"},
		"no archive":         {bytes.Repeat([]byte("junk"), 1000), "invalid tar header"},
		"too many parts":     {tarOf(t, many...), fmt.Sprintf("more than %d parts", maxParts)},
		"a link":             {headerOf(t, tar.Header{Typeflag: tar.TypeSymlink, Linkname: "/etc"}), "not a plain file"},
		"a file with holes":  {holes, "not a plain file"},
		"a part that is cut": {headerOf(t, tar.Header{Typeflag: tar.TypeReg, Size: 4 << 30}), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			h := sends(tt.content)
			if tt.content == nil {
				h.send = func(context.Context, string, func([]byte) error) error { return nil }
			}
			_, err := Open(t.Context(), refs["an image"], at(t, h.peer(t, "host a")))
			says(t, err, "host a: ")
			says(t, err, tt.want)
			if errors.Is(err, ErrNotFound) {
				t.Errorf("%v: the host does not say that it lacks the image", err)
			}
		})
	}
}

// endless sends a part that does not end, with pieces of some bytes, and each after a pause.
func endless(t testing.TB, piece int, pause time.Duration) *host {
	begin := headerOf(t, tar.Header{Typeflag: tar.TypeReg, Size: 4 << 30})
	return &host{send: func(ctx context.Context, _ string, send func([]byte) error) error {
		for err := send(begin); ; err = send(make([]byte, piece)) {
			if err != nil {
				return err
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
}

func TestAnotherHostThatStallsIsLeft(t *testing.T) {
	here, refs := contentCases(t)
	ref := refs["an image"]
	content := contentOf(t, ref, here)
	for name, tt := range map[string]struct {
		stalls func(t testing.TB) *host
		after  time.Duration
		want   string
	}{
		"without a byte": {
			func(testing.TB) *host {
				return &host{send: func(ctx context.Context, _ string, _ func([]byte) error) error {
					<-ctx.Done()
					return ctx.Err()
				}}
			}, peerPatience, errPeerStalls.Error(),
		},
		"byte by byte": {
			func(t testing.TB) *host { return endless(t, 1, time.Second) }, peerPatience, errPeerStalls.Error(),
		},
		"with empty pieces": {func(t testing.TB) *host { return endless(t, 0, 0) }, 0, errEmptyPiece.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				stalls := tt.stalls(t).peer(t, "host a")
				image, err := Open(t.Context(), ref, at(t, stalls, sends(content).peer(t, "host b")))
				check(t, err)
				_, err = Load(image)
				check(t, err)
				if passed := time.Since(start); passed != tt.after {
					t.Errorf("the next host was asked after %v, want %v", passed, tt.after)
				}
				_, err = Open(t.Context(), ref, at(t, stalls))
				says(t, err, "host a: "+tt.want)
			})
		})
	}
}

// A host that asks others may take its time, but not that of the next one, or of the registry.
func TestASlowHostLeavesTimeForTheOthers(t *testing.T) {
	here, refs := contentCases(t)
	ref := refs["an image"]
	content := contentOf(t, ref, here)
	synctest.Test(t, func(t *testing.T) {
		slow := endless(t, 1, time.Second).peer(t, "host a")
		slow.Relays = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		_, err := Open(ctx, "r@"+sha, at(t, slow))
		says(t, err, "host a: DeadlineExceeded")
		if passed := time.Since(start); passed != 30*time.Minute || ctx.Err() != nil {
			t.Errorf("one slow host has taken %v of an hour", passed)
		}
		start = time.Now()
		image, err := Open(ctx, ref, at(t, slow, sends(content).peer(t, "host b")))
		check(t, err)
		_, err = Load(image)
		check(t, err)
		if passed := time.Since(start); passed != 7*time.Minute+30*time.Second {
			t.Errorf("the second host was asked after %v of half an hour", passed)
		}
	})
}

func TestWhatAnotherHostSendsIsBounded(t *testing.T) {
	hash, err := v1.NewHash(sha)
	check(t, err)
	dir := t.TempDir()
	read := func(s spool) error {
		header := headerOf(t, tar.Header{Typeflag: tar.TypeReg, Size: 4 << 30})
		_, err := s.image(t.Context(), io.MultiReader(bytes.NewReader(header), zeros{}), hash)
		return err
	}
	if err := read(spool{dir: dir, most: 1 << 20}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the limit is 1 MiB: %v", err)
	}
	if err := read(spool{dir: dir, most: 1 << 40, reserve: math.MaxInt64}); !errors.Is(err, ErrNotWritten) {
		t.Errorf("nothing of the disk is free: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v remains, %v", entries, err)
	}
	if s := newSpool(""); s.most != 2<<30 || s.reserve != 1<<30 {
		t.Errorf("the limits are %+v", s)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// An image keeps its file, which no directory lists, for as long as it is used and no longer.
func TestTheFileOfAnImageIsClosedWithIt(t *testing.T) {
	here, refs := contentCases(t)
	places := at(t, sends(contentOf(t, refs["an image"], here)).peer(t, "host a"))
	open := func() (n int) {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		for _, e := range entries {
			if file, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(file, places.Spool) {
				n++
			}
		}
		return n
	}
	image, err := Open(t.Context(), refs["an image"], places)
	check(t, err)
	if open() != 1 {
		t.Errorf("%d files are open for one image", open())
	}
	runtime.KeepAlive(image)
	for start := time.Now(); open() > 0; runtime.GC() {
		if time.Sleep(time.Millisecond); time.Since(start) > 10*time.Second {
			t.Fatalf("%d files remain open", open())
		}
	}
}

func TestAnImageThatIsNowhereNamesThePlaces(t *testing.T) {
	relay := lacks().peer(t, "host c")
	relay.Relays = true
	late := lacks()
	late.send = func(_ context.Context, _ string, piece func([]byte) error) error {
		return errors.Join(piece([]byte("x")), status.Error(codes.NotFound, "not here"))
	}
	a, b := lacks().peer(t, "host a"), lacks().peer(t, "host b")
	for name, tt := range map[string]struct {
		peers  []Peer
		want   string
		absent bool
	}{
		"no other hosts":     {nil, "no such image in LAYOUT", true},
		"none has it":        {[]Peer{a, b}, "no such image in LAYOUT, nor at host a, nor at host b", true},
		"none that one asks": {[]Peer{relay}, "no such image in LAYOUT, nor at host c (no such image: not here)", true},
		"one is away":        {[]Peer{a, away("host b")}, "no image in LAYOUT, nor at host a; host b: no route", false},
		"one is older": {
			[]Peer{(&host{send: func(context.Context, string, func([]byte) error) error {
				return status.Error(codes.Unimplemented, "unknown method")
			}}).peer(t, "host a")}, "no image in LAYOUT; host a: Unimplemented: unknown method", false,
		},
		"one says very much": {[]Peer{(&host{send: func(context.Context, string, func([]byte) error) error {
			return status.Error(codes.Internal, strings.Repeat("x", 20_000)+"\xff")
		}}).peer(t, "host a")}, "no image in LAYOUT; host a: Internal: xxx", false},
		"one says so late": {[]Peer{late.peer(t, "host a")}, "host a: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			places := at(t, tt.peers...)
			for _, ref := range []string{"r@" + sha, "r.example.com/r@" + sha} {
				if strings.Contains(ref, "/") { // no registry is reached
					places.Registries.Settings = []string{
						written(t, "registries: {r.example.com: {mirrors: ['http://127.0.0.1:1'], mirrorsOnly: true}}"),
					}
				}
				_, err := Open(t.Context(), ref, places)
				says(t, err, strings.ReplaceAll(tt.want, "LAYOUT", places.Layouts[0]))
				if text := err.Error(); len(text) > 3000 || !utf8.ValidString(text) {
					t.Errorf("%d bytes of text", len(text))
				}
				if got := errors.Is(err, ErrNotFound); got != (tt.absent && !strings.Contains(ref, "/")) {
					t.Errorf("%s: is ErrNotFound: %v: %v", ref, got, err)
				}
			}
			_, err := places.Find(t.Context(), sha)
			if got := errors.Is(err, ErrNotFound); got != tt.absent {
				t.Errorf("is ErrNotFound: %v: %v", got, err)
			}
		})
	}
}

// The registry is asked also if other hosts fail, and what both said is there.
func TestTheRegistryIsAskedAfterOtherHosts(t *testing.T) {
	server := httptest.NewServer(newRegistry())
	defer server.Close()
	at := at(t, away("host a"))
	here := strings.TrimPrefix(server.URL, "http://")
	digest := push(t, here, imageOf(t, heads()))
	image, err := Open(t.Context(), here+"/release@"+digest, at)
	check(t, err)
	_, err = Load(image)
	check(t, err)
	_, err = Open(t.Context(), here+"/release@"+sha, at)
	says(t, err, "host a: no route")
	says(t, err, here)
	if errors.Is(err, ErrNotFound) {
		t.Errorf("%v: host a may have it", err)
	}
}

func TestSignaturesOfOtherHostsAreChecked(t *testing.T) {
	key, ring := signer(t, "a")
	stranger, _ := signer(t, "b")
	sign := func(k Key, digest string) []byte {
		path, err := k.Sign(t.TempDir(), digest, "r@"+digest, created())
		check(t, err)
		raw, err := os.ReadFile(path)
		check(t, err)
		return raw
	}
	good, other, foreign := sign(key, sha), sign(key, byTestKey), sign(stranger, sha)
	here := t.TempDir()
	verifier := func(peers ...Peer) Verifier {
		return Verifier{Rings: []Ring{ring}, Stores: []string{store(t, here)}, Elsewhere: func() []Peer { return peers }}
	}
	offers := func(name string, signed ...[]byte) Peer { return (&host{signed: signed}).peer(t, name) }
	proofs, err := verifier(away("host a"), offers("host b", foreign), offers("host c", other, good)).Prove(t.Context(),
		sha)
	check(t, err)
	if len(proofs) != 1 || proofs[0].Store != "host c" || proofs[0].Signature != "signature-2" {
		t.Errorf("proofs %+v", proofs)
	}
	bad := verifier(away("host a"), offers("host b", foreign, other, make([]byte, maxSignature+1)), offers("host c"))
	_, err = bad.Prove(t.Context(), sha)
	for _, want := range []string{
		"host a: no route", "host b signature-1 for key ring a: it was made with key", "host b signature-2 for key ring a: ",
		"host b signature-3: it is longer than", "host c: it has no signature",
	} {
		says(t, err, want)
	}
	many := make([][]byte, 10*maxListed)
	_, err = verifier(offers("host a", append(many, good)...)).Prove(t.Context(), sha)
	var failed *verificationError
	if !errors.As(err, &failed) || len(failed.Findings) != 1+maxListed {
		t.Errorf("%d findings of a host that sends too many: %v", len(failed.Findings), err)
	}
	asked := &host{}
	_, err = key.Sign(here, sha, "r@"+sha, created())
	check(t, err)
	_, err = verifier(asked.peer(t, "host a")).Prove(t.Context(), sha)
	check(t, err)
	if asked.asked.Load() != 0 {
		t.Error("a host was asked although the store has a good signature")
	}
}

func TestAHostThatDoesNotAnswerForSignaturesIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ring := signer(t, "a")
		start := time.Now()
		stalls := Peer{Name: "host a", Dial: func() (PeerConn, error) { return hanging{}, nil }}
		_, err := Verifier{Rings: []Ring{ring}, Elsewhere: func() []Peer { return []Peer{stalls} }}.Prove(t.Context(), sha)
		says(t, err, "host a: DeadlineExceeded")
		if time.Since(start) != signaturesLimit {
			t.Errorf("it was left after %v", time.Since(start))
		}
	})
}

// hanging is a connection on which nothing is answered.
type hanging struct{ grpc.ClientConnInterface }

func (hanging) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func (hanging) Close() error { return nil }

func TestTheSignaturesOfDirectoriesAreListed(t *testing.T) {
	key, _ := signer(t, "a")
	dirs := []string{"https://example.com", store(t, filepath.Join(t.TempDir(), "none"))}
	for range 5 {
		dir := t.TempDir()
		for range maxSignatures {
			_, err := key.Sign(dir, sha, "r@"+sha, created())
			check(t, err)
		}
		dirs = append(dirs, store(t, dir))
	}
	all, err := Signatures(t.Context(), dirs, sha)
	check(t, err)
	if len(all) != maxListed {
		t.Errorf("%d signatures, want %d", len(all), maxListed)
	}
	long := t.TempDir()
	place(t, long, make([]byte, maxSignature+1))
	all, err = Signatures(t.Context(), append([]string{store(t, long)}, dirs[2]), sha)
	says(t, err, "signature-1: it is longer than")
	if len(all) != maxSignatures {
		t.Errorf("%d signatures beside one that cannot be read, want %d", len(all), maxSignatures)
	}
}
