package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// historyPoll is how often a watch of the past is asked whether it has reached the present: it takes a few
// milliseconds.
const historyPoll = 20 * time.Millisecond

// searchHistory returns the revision after the commit's base and up to until at which the commit wrote key; 0 if none.
// It is needed when another client changed the record between the lost answer and the next try.
func (c *commit) searchHistory(ctx context.Context, key string, until int64) (int64, error) {
	after := c.base // a member that answers late is still asked while the commit goes on
	revision, err := retry(ctx, c.store, historyPace, "history", func(ctx context.Context) (int64, error) {
		return c.replayTwice(ctx, key, after, until)
	})
	if errors.Is(err, rpctypes.ErrCompacted) {
		// Neither success nor conflict can be claimed any more.
		return 0, fmt.Errorf("%w: outcome unknown: %w", ErrUnavailable, ErrCompacted)
	}
	return revision, err
}

// replayTwice is one attempt of searchHistory. Two members are asked at once: one that hangs, as the attempt in doubt
// may have shown, costs no time. Nor do attempts come to that one again and again: with this, the requests from one
// attempt to the next are two or four, and the client takes its members in turn, which are three or five.
func (c *commit) replayTwice(ctx context.Context, key string, after, until int64) (revision int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		revision int64
		err      error
	}
	results := make(chan result, 2)
	for range cap(results) {
		go func() {
			revision, err := c.replay(ctx, key, after, until)
			results <- result{revision, err}
		}()
	}
	for range cap(results) {
		if r := <-results; r.err == nil {
			return r.revision, nil
		} else if err == nil || outcomeOf(err) == unknown {
			err = r.err
		}
	}
	return 0, err
}

// replay asks one member.
func (c *commit) replay(ctx context.Context, key string, after, until int64) (int64, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	watcher := clientv3.NewWatcher(c.store.client)
	defer func() {
		cancel()
		watcher.Close()
	}()
	answers := watcher.Watch(ctx, key, clientv3.WithRev(after+1))
	poll := time.NewTicker(historyPoll)
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
			// A failure shows in the answers too.
			_ = watcher.RequestProgress(ctx)
		case resp, ok := <-answers:
			if !ok {
				return 0, errWatchClosed
			}
			if err := resp.Err(); err != nil {
				return 0, err
			}
			for _, event := range resp.Events {
				if event.Type == clientv3.EventTypePut && c.wrote(event.Kv) {
					return event.Kv.ModRevision, nil
				}
				if event.Kv.ModRevision >= until {
					return 0, nil
				}
			}
			if resp.IsProgressNotify() && resp.Header.Revision >= until {
				return 0, nil
			}
		}
	}
}
