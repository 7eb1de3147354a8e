package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// mostImages are sent at once from this disk, and as many from other hosts. Each has slots of its own: two hosts that
	// ask each other must not wait for one another.
	mostImages = 4
	imageAgain = 5 * time.Second
	// imageLimit is as long as a supervisor waits for an executable.
	imageLimit = 10 * time.Minute
	// imageBytes is what is read of the layers of a release at most.
	imageBytes = 2 << 30
	pieceBytes = 128 << 10
	// pieceLimit is how long a caller may take for a piece.
	pieceLimit = 15 * time.Second
)

// ReadReleaseImage sends an image that is in a layout of this process, or else on another host.
func (s *Release) ReadReleaseImage(req *updatev1.ReadReleaseImageRequest,
	stream grpc.ServerStreamingServer[updatev1.ReadReleaseImageResponse],
) error {
	places, slots := s.images, s.relays
	if req.GetLocal() {
		places.Elsewhere, slots = nil, s.sends
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return rpcerr.TooMany(fmt.Sprintf("%d release images are sent already", mostImages), imageAgain)
	}
	ctx, cancel := context.WithTimeoutCause(stream.Context(), imageLimit, errImageLimit)
	defer cancel()
	image, err := places.Find(ctx, req.GetDigest())
	switch {
	case errors.Is(err, release.ErrNotFound):
		return rpcerr.NotFoundAnywhere("release image", req.GetDigest(), err.Error())
	case err != nil:
		return imageError(ctx, err)
	}
	if err := sendImage(ctx, image, stream); err != nil {
		return imageError(ctx, err)
	}
	return nil
}

// ListReleaseSignatures returns the signatures that are in the directories of signatures of this process.
func (s *Release) ListReleaseSignatures(ctx context.Context, req *updatev1.ListReleaseSignaturesRequest) (
	*updatev1.ListReleaseSignaturesResponse, error,
) {
	all, err := release.Signatures(ctx, s.stores, req.GetDigest())
	if len(all) == 0 && err != nil {
		return nil, imageError(ctx, err)
	}
	return &updatev1.ListReleaseSignaturesResponse{Signatures: all}, ctx.Err()
}

var (
	errImageLimit = fmt.Errorf("the image is not sent within %v", imageLimit)
	errPieceLimit = fmt.Errorf("the caller does not take %d bytes of the image within %v", pieceBytes, pieceLimit)
)

// imageError is the error of a call that cannot be answered now.
func imageError(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errImageLimit):
		err = errImageLimit
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return rpcerr.Unavailable(err.Error())
}

// sendImage sends an image. It returns as soon as ctx ends, also while the caller takes nothing: the stream ends with
// the call then, and what is being sent with it.
func sendImage(ctx context.Context, image *release.Image,
	stream grpc.ServerStreamingServer[updatev1.ReadReleaseImageResponse],
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(pieceLimit, func() { cancel(errPieceLimit) })
	timer.Stop() // until a piece is sent
	sent := make(chan error, 1)
	go func() {
		to := bufio.NewWriterSize(pieces{ctx, stream, timer}, pieceBytes)
		err := image.WriteContent(to, imageBytes)
		if err == nil {
			err = to.Flush()
		}
		sent <- err
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pieces sends what is written.
type pieces struct {
	ctx    context.Context
	stream grpc.ServerStreamingServer[updatev1.ReadReleaseImageResponse]
	timer  *time.Timer // ends the context; runs while a piece is sent
}

func (p pieces) Write(b []byte) (int, error) {
	for piece := range slices.Chunk(b, pieceBytes) {
		if p.ctx.Err() != nil {
			return 0, context.Cause(p.ctx)
		}
		p.timer.Reset(pieceLimit)
		// The writer uses its bytes again, and a message must not change after it was sent.
		err := p.stream.Send(&updatev1.ReadReleaseImageResponse{Data: bytes.Clone(piece)})
		p.timer.Stop()
		if err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
