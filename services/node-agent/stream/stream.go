// Package stream keeps a conversation with the cluster going: what breaks off is begun again, sooner or later. Nothing
// here ends because the cluster is away.
package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"google.golang.org/grpc/status"
)

const (
	// FirstPause and LongPause bound the pause before a session that follows on one that broke off; it varies by half.
	FirstPause, LongPause = 50 * time.Millisecond, time.Second
	// longSession is how long a session must have lasted for the next pause to be the shortest again.
	longSession = 5 * time.Second
)

// Again calls session over and over until ctx ends, with a pause after each that grows while sessions are short. An
// error that is last ends it; nil means none. What breaks off is logged as what.
func Again(ctx context.Context, log *slog.Logger, what string, last error, session func(context.Context) error) error {
	again, said := backoff.Spread(FirstPause, LongPause), ""
	for {
		began := time.Now()
		err := session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case last != nil && errors.Is(err, last):
			return err
		}
		if time.Since(began) > longSession {
			said = ""
			again.Reset()
		}
		if text := status.Convert(err).Message(); text != said {
			said = text
			log.InfoContext(ctx, "stream broke off", "stream", what, "error", err)
		}
		if !again.Wait(ctx) {
			return nil
		}
	}
}
