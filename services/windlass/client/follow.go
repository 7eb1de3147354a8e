package client

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/resource"
)

const (
	// before a broken watch is opened again: about what a restart of the gateway's link takes
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Follow is Watch that survives the loss of its stream: it resumes at the last revision, and lists again where that is
// no longer possible, so that f may receive objects again, as ADDED. It ends with ctx, with an error of f, or with an
// error that a retry cannot resolve.
func (c *Client) Follow(ctx context.Context, k Kind, s Selection, after string, f func(Event) error) error {
	again := backoff.New(firstPause, lastPause)
	for {
		var stop error
		err := c.Watch(ctx, k, s, after, func(e Event) error {
			again.Reset()
			if e.Revision != "" && e.Revision != resource.FormatRevision(0) {
				after = e.Revision
			}
			stop = f(e)
			return stop
		})
		switch {
		case stop != nil:
			return stop
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.OutOfRange:
			after = ""
		case !passes(err):
			return err
		}
		if !again.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// passes reports whether the end of a stream means no more than that it has to be opened again.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled:
		return true
	}
	return err == io.EOF
}
