package events

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// retryWatch is how long a program that went away is left alone.
const retryWatch = time.Second

// WatchEvents merges the watches of all programs. They share one etcd, so one revision resumes all of them: it is the
// lowest that any of them has come to, and what the others sent after it comes again.
func (m *Merger) WatchEvents(r *eventv1.WatchEventsRequest,
	stream grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
) error {
	return m.watch(stream.Context(), r, stream.Send)
}

// news is what one program's watch has to say.
type news struct {
	index   int
	message *eventv1.WatchEventsResponse
	away    bool  // the program cannot be reached; it is tried again
	err     error // the watch as a whole ends
}

func (m *Merger) watch(ctx context.Context, r *eventv1.WatchEventsRequest,
	send func(*eventv1.WatchEventsResponse) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	feed := make(chan news)
	for i, s := range m.sources {
		wg.Go(func() { follow(ctx, i, s, r, feed) })
	}
	state := newProgress(len(m.sources), r)
	for {
		select {
		case <-ctx.Done():
			return rpcerr.From(ctx.Err())
		case n := <-feed:
			if n.err != nil {
				return n.err
			}
			for _, message := range state.take(n) {
				if err := send(message); err != nil {
					return err
				}
			}
			if state.allAway() {
				return rpcerr.Unavailable(errAllAway.Error())
			}
		}
	}
}

// follow watches one program, again and again, until ctx ends or the program refuses.
func follow(ctx context.Context, index int, s source, r *eventv1.WatchEventsRequest, feed chan<- news) {
	tell := func(n news) bool {
		n.index = index
		select {
		case feed <- n:
			return true
		case <-ctx.Done():
			return false
		}
	}
	from := r.GetResourceVersion()
	for {
		err := followOnce(ctx, s, r, &from, tell)
		if ctx.Err() != nil {
			return
		}
		if !absent(err) {
			tell(news{err: err})
			return
		}
		if !tell(news{away: true}) || status.Code(err) == codes.Unimplemented {
			return
		}
		select {
		case <-time.After(retryWatch):
		case <-ctx.Done():
			return
		}
	}
}

func followOnce(ctx context.Context, s source, r *eventv1.WatchEventsRequest, from *string,
	tell func(news) bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.WatchEvents(ctx, &eventv1.WatchEventsRequest{
		Namespace:           r.GetNamespace(),
		LabelSelector:       r.GetLabelSelector(),
		FieldSelector:       r.GetFieldSelector(),
		ResourceVersion:     *from,
		AllowWatchBookmarks: true, // without them a quiet program would hold the common revision back
	})
	if err != nil {
		return err
	}
	listed := *from != ""
	for {
		message, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		// Until the first list is complete, a lost stream starts again.
		listed = listed || message.GetBookmark()
		if listed && message.GetResourceVersion() != "" {
			*from = message.GetResourceVersion()
		}
		if !tell(news{message: message}) {
			return ctx.Err()
		}
	}
}

// ended turns the end of a watch that a program should never end into a reason to try again.
func ended(err error) error {
	if _, isStatus := status.FromError(err); !isStatus {
		return rpcerr.Unavailable("the watch ended")
	}
	return err
}

// progress is how far each program's watch has come.
type progress struct {
	at        []int64 // revision; -1 while it is not known
	listed    []bool  // the first list is complete
	away      []bool
	bookmarks bool  // the client wants them
	begun     bool  // the bookmark after the first list was sent, or there was no list
	told      int64 // revision that the client knows
}

func newProgress(n int, r *eventv1.WatchEventsRequest) *progress {
	start := revision(r.GetResourceVersion())
	p := &progress{
		at: make([]int64, n), listed: make([]bool, n), away: make([]bool, n),
		bookmarks: r.GetAllowWatchBookmarks(), begun: start >= 0, told: start,
	}
	for i := range n {
		p.at[i], p.listed[i] = start, start >= 0
	}
	return p
}

// take records a message of a program and returns what to send to the client.
func (p *progress) take(n news) []*eventv1.WatchEventsResponse {
	p.away[n.index] = n.away
	var out []*eventv1.WatchEventsResponse
	if m := n.message; m != nil {
		p.listed[n.index] = p.listed[n.index] || m.GetBookmark()
		if p.listed[n.index] {
			p.at[n.index] = max(p.at[n.index], revision(m.GetResourceVersion()))
		}
		if len(m.GetEvents()) > 0 {
			out = append(out, &eventv1.WatchEventsResponse{Events: m.GetEvents(), ResourceVersion: p.token()})
		}
	}
	if b := p.bookmark(n.message.GetBookmark()); b != nil {
		out = append(out, b)
	}
	return out
}

// bookmark returns the bookmark that is due: once after the first list, later if the client wants them.
func (p *progress) bookmark(given bool) *eventv1.WatchEventsResponse {
	common := p.common()
	first := !p.begun && common >= 0
	if !first && (!given || !p.bookmarks || !p.begun || common <= p.told) {
		return nil
	}
	p.begun, p.told = true, common
	return &eventv1.WatchEventsResponse{ResourceVersion: p.token(), Bookmark: true}
}

// common is the revision that all have come to, -1 while one that can be reached has not listed yet. A program that was
// never reached does not count: its events are missing, as they are in a list.
func (p *progress) common() int64 {
	lowest := int64(-1)
	for i, at := range p.at {
		switch {
		case at >= 0:
			lowest = lower(lowest, at)
		case !p.away[i]:
			if !p.begun {
				return -1
			}
		}
	}
	return lowest
}

func (p *progress) token() string {
	if common := p.common(); common >= 0 {
		return strconv.FormatInt(common, 10)
	}
	return ""
}

func (p *progress) allAway() bool {
	for i := range p.away {
		if !p.away[i] || p.at[i] >= 0 {
			return false
		}
	}
	return len(p.away) > 0
}
