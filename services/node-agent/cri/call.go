package cri

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// callPatience is how long a call may take. Source: kubelet's runtimeRequestTimeout.
	callPatience = 2 * time.Minute
	// maxMessage is the largest answer, in bytes. Source: kubelet's remote runtime.
	maxMessage = 16 << 20
)

// away reports whether err means that the runtime was not reached, or did not answer: nothing is known of what was
// asked for.
func away(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	case codes.Unknown: // containerd that recovers its containers
		return strings.Contains(err.Error(), "server is not initialized yet")
	}
	return false
}

// missing reports whether err means that the runtime does not have what was asked for.
func missing(err error) bool { return status.Code(err) == codes.NotFound }

// notFound returns err, or nil if it means that the runtime does not have what was asked for.
func notFound(err error) error {
	if missing(err) {
		return nil
	}
	return err
}

// reserved reports whether err means that the runtime has a container or sandbox of that name, or is about to: an
// earlier request for it is under way.
func reserved(err error) bool {
	text := err.Error()
	return status.Code(err) == codes.AlreadyExists || strings.Contains(text, "is reserved for") || // containerd
		strings.Contains(text, "name is reserved") || strings.Contains(text, "already in use") // CRI-O
}

// starting reports whether err means that the runtime starts that container already: an earlier request is under way.
func starting(err error) bool { return strings.Contains(err.Error(), "already in starting state") } // containerd

// plain returns the text of an error of the runtime without what gRPC adds.
func plain(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// method is a method of the runtime's API.
type method[Request, Response any] func(context.Context, Request, ...grpc.CallOption) (Response, error)

// call does one call of the runtime within callPatience.
func call[Request, Response any](ctx context.Context, do method[Request, Response],
	in Request,
) (Response, error) {
	return callWithin(ctx, callPatience, do, in)
}

// callWithin is call with another limit.
func callWithin[Request, Response any](ctx context.Context, patience time.Duration,
	do method[Request, Response], in Request,
) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx, in)
}

// backOff is how long to wait after failures in a row.
type backOff struct{ failures int }

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// next returns the pause after another failure.
func (b *backOff) next() time.Duration {
	pause := maxPause
	if b.failures < 6 {
		pause = firstPause << b.failures
	}
	b.failures++
	return min(pause, maxPause)
}

// sleep waits, and reports false if ctx ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
