package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/durable"
)

const (
	// maxSpool is how many bytes are taken from a peer at most: what is read of the layers of an image.
	maxSpool = maxPacked
	// spoolReserve is how many bytes of the disk are left alone: etcd may be on it, and ends where it is full.
	spoolReserve = 1 << 30
	// peerBytes must come from a peer within each peerPatience, or the next one is asked.
	peerBytes    = 256 << 10
	peerPatience = 15 * time.Second
	// signaturesLimit is how long a peer may take for the signatures of an image: a call that verifies one may take ten
	// seconds.
	signaturesLimit = 3 * time.Second
)

// Peer is an update-orchestrator that may have images and signatures. What it sends is compared with the digest that
// was asked for, and its signatures are checked as those of a store: it is trusted in nothing.
type Peer struct {
	Name string // for people, such as "host rack-1-b"
	// Dial returns a connection to it, which is closed after use.
	Dial func() (PeerConn, error)
	// Relays means that it asks the other hosts where it does not have an image itself. It may then take its time.
	Relays bool
}

// PeerConn is a connection to a peer.
type PeerConn interface {
	grpc.ClientConnInterface
	io.Closer
}

// onOtherHosts returns the image of the first peer that sends it. It is ErrNotFound only if all say that they do not
// have it.
func (in Places) onOtherHosts(ctx context.Context, digest v1.Hash) (*Image, error) {
	places := "in " + orNone(in.Layouts)
	var failed []string
	peers := in.Elsewhere()
	end := halfway(ctx)
	for i, p := range peers {
		each, cancel := ctx, context.CancelFunc(func() {})
		if !end.IsZero() {
			each, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(peers)-i))
		}
		image, err := p.image(each, digest, newSpool(in.Spool))
		cancel()
		switch {
		case err == nil:
			return image, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, ErrUnfit): // the index says so, which is the same everywhere
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		case !errors.Is(err, ErrNotFound):
			failed = append(failed, p.Name+": "+brief(err.Error()))
		case p.Relays:
			places += ", nor at " + p.Name + " (" + brief(err.Error()) + ")"
		default:
			places += ", nor at " + p.Name
		}
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("no image %s; %s", places, strings.Join(failed, "; "))
	}
	return nil, fmt.Errorf("%w %s", ErrNotFound, places)
}

// halfway returns when half of the time of ctx is over, which is what all peers together get: one that is slow must not
// use up the time of the next one, or of the registry. It is zero if ctx has no end.
func halfway(ctx context.Context) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	return time.Now().Add(time.Until(end) / 2)
}

// brief returns what a peer said so that it fits into a status and a record, whatever it is.
func brief(text string) string {
	const most = 1000 // bytes
	return strings.ToValidUTF8(text[:min(len(text), most)], "\uFFFD")
}

// image reads an image from a peer into a file without a name, which is gone with the image or with this process.
// ErrNotFound if the peer says that it does not have it.
func (p Peer) image(ctx context.Context, digest v1.Hash, to spool) (*Image, error) {
	conn, err := p.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := &pieces{ctx: ctx}
	if !p.Relays {
		in.timer = time.AfterFunc(peerPatience, func() { cancel(errPeerStalls) })
		defer in.timer.Stop()
	}
	in.stream, err = updatev1.NewReleaseServiceClient(conn).ReadReleaseImage(ctx,
		&updatev1.ReadReleaseImageRequest{Digest: digest.String(), Local: !p.Relays})
	if err != nil {
		return nil, in.reason(err)
	}
	return to.image(ctx, in, digest)
}

// spool is where images of peers are kept while they are used.
type spool struct {
	dir     string
	most    int64 // bytes of an image
	reserve int64 // bytes of the disk that are left alone
}

func newSpool(dir string) spool { return spool{cmp.Or(dir, os.TempDir()), maxSpool, spoolReserve} }

// image returns the image of a content that is read now. Its file is listed in no directory, so that a kill leaves
// nothing, and is closed once it cannot be reached any more.
func (s spool) image(ctx context.Context, content io.Reader, digest v1.Hash) (*Image, error) {
	if err := durable.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.dir, TempPrefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) { // a sweep may have seen it
		return nil, errors.Join(err, f.Close())
	}
	image, err := s.fill(ctx, f, content, digest)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return image, nil
}

func (s spool) fill(ctx context.Context, f *os.File, content io.Reader, digest v1.Hash) (*Image, error) {
	size := int64(0)
	limited := counted{content, &size, s.most, func(most int64) error {
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, most)
	}}
	p, err := partsOf(ctx, io.TeeReader(limited, &sparing{f: f, reserve: s.reserve}), section{file: f}, false)
	if err != nil {
		return nil, err
	}
	if p[digest.String()] == nil {
		return nil, errors.New("it sends another image")
	}
	return p.find("peer@" + digest.String())
}

// sparing is a file that does not fill its disk.
type sparing struct {
	f       *os.File
	reserve int64
	unasked int64 // bytes that were written since it was seen how many are free
	asked   bool
}

func (s *sparing) Write(p []byte) (int, error) {
	const every = 8 << 20 // bytes
	if s.unasked += int64(len(p)); s.unasked >= every || !s.asked {
		var disk unix.Statfs_t
		if err := unix.Fstatfs(int(s.f.Fd()), &disk); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNotWritten, err)
		}
		if free := int64(disk.Bavail) * disk.Bsize; free < s.reserve {
			return 0, fmt.Errorf("%w: %d bytes are free in %s, and %d of them are left alone", ErrNotWritten, free,
				filepath.Dir(s.f.Name()), s.reserve)
		}
		s.unasked, s.asked = 0, true
	}
	return s.f.Write(p)
}

// pieces reads what a peer sends.
type pieces struct {
	ctx    context.Context
	stream grpc.ServerStreamingClient[updatev1.ReadReleaseImageResponse]
	timer  *time.Timer // ends ctx when the peer stalls; nil if it may
	since  int         // bytes since it was set
	all    int64
	rest   []byte
}

var (
	errPeerStalls = fmt.Errorf("it sends less than %d bytes within %v", peerBytes, peerPatience)
	errEmptyPiece = errors.New("it sends a piece without bytes")
)

// Read implements io.Reader.
func (p *pieces) Read(to []byte) (int, error) {
	if len(p.rest) == 0 {
		m, err := p.stream.Recv()
		if err != nil {
			return 0, p.reason(err)
		}
		if p.rest = m.GetData(); len(p.rest) == 0 {
			return 0, errEmptyPiece
		}
	}
	n := copy(to, p.rest)
	p.rest = p.rest[n:]
	p.all += int64(n)
	if p.since += n; p.since >= peerBytes && p.timer != nil {
		p.since = 0
		p.timer.Reset(peerPatience)
	}
	return n, nil
}

// reason returns why nothing more comes. That a peer does not have an image it can only say before it sends some of it.
func (p *pieces) reason(err error) error {
	st := status.Convert(err)
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(context.Cause(p.ctx), errPeerStalls):
		return errPeerStalls
	case st.Code() == codes.NotFound && p.all == 0:
		return fmt.Errorf("%w: %s", ErrNotFound, st.Message())
	}
	return fmt.Errorf("%s: %s", st.Code(), st.Message())
}

// signatures calls use with each signature of an image that a peer has, until use is false.
func (p Peer) signatures(ctx context.Context, digest string, use useSignature) error {
	conn, err := p.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, signaturesLimit)
	defer cancel()
	list, err := updatev1.NewReleaseServiceClient(conn).ListReleaseSignatures(ctx,
		&updatev1.ListReleaseSignaturesRequest{Digest: digest})
	if err != nil {
		return fmt.Errorf("%s: %s", status.Code(err), brief(status.Convert(err).Message()))
	}
	for i, raw := range list.GetSignatures()[:min(len(list.GetSignatures()), maxListed)] {
		var err error
		if len(raw) > maxSignature {
			err = errLong
		}
		if !use(signatureName(i+1), raw, err) {
			break
		}
	}
	return nil
}

// maxListed is how many signatures of an image a peer may send.
const maxListed = 32

// Signatures returns the signatures of an image that are in stores with file addresses, in their order, maxListed
// at most. Other stores are not asked, and a directory that does not exist has none. The error says which could not be
// read beside those that are returned.
func Signatures(ctx context.Context, stores []string, digest string) ([][]byte, error) {
	folder, err := storeFolder(digest)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	var failed []error
	for _, store := range stores {
		if address, err := storeAddress(store); err != nil || address.Scheme != "file" {
			continue
		}
		err := Verifier{}.signatures(ctx, store, folder, func(name string, raw []byte, err error) bool {
			switch {
			case err != nil:
				failed = append(failed, fmt.Errorf("%s %s: %w", store, name, err))
			case len(all) < maxListed:
				all = append(all, raw)
			}
			return len(all) < maxListed
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("%s: %w", store, err))
		}
	}
	return all, errors.Join(failed...)
}
