package image

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/windlass-dev/windlass/kit/registry"
)

// progress counts what arrives of an image.
type progress struct {
	total    int64 // of the layers, as they are sent; 0 is not known
	received atomic.Int64
}

// pull returns the image as its registry has it: its manifest and its configuration are read and checked. Layers are
// read when it is unpacked, in a context of their own, since several pods may wait for them.
func pull(ctx context.Context, s registry.Source) (*Image, error) {
	life, cancel := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	img, end, err := fetch(life, s)
	if err != nil {
		cancel(err)
		end()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	img.close = func(why error) {
		cancel(why)
		end()
	}
	return img, nil
}

func fetch(ctx context.Context, s registry.Source) (img *Image, end func(), err error) {
	p := &progress{}
	named, end, err := s.Get(ctx, &p.received)
	if err != nil {
		return nil, func() {}, pullError(s.Ref, err)
	}
	found, err := named.Image()
	if err != nil {
		return nil, end, pullError(s.Ref, err)
	}
	digest, err := found.Digest()
	if err != nil {
		return nil, end, pullError(s.Ref, err)
	}
	if img, err = read(found, digest); err != nil {
		return nil, end, pullError(s.Ref, err)
	}
	if named.MediaType.IsIndex() {
		img.index = named.Digest.String()
	}
	manifest, err := found.Manifest()
	if err != nil {
		return nil, end, pullError(s.Ref, err)
	}
	for _, l := range manifest.Layers {
		if p.total += l.Size; l.Size < 0 || p.total > maxBytes {
			return nil, end, fmt.Errorf("%w: %s: its layers have more than %d bytes", ErrBroken, s.Ref, int64(maxBytes))
		}
	}
	p.received.Store(0) // what follows are layers
	img.received = p
	return img, end, nil
}

// pullError returns what went wrong as one of this package's errors.
func pullError(ref name.Reference, err error) error {
	if registry.IsNotFound(err) {
		return fmt.Errorf("%w: %s: %w", ErrNotFound, ref, err)
	}
	return fmt.Errorf("%w: %s: %w", errTransfer, ref, err)
}
