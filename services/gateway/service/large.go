package service

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/rest"
)

// largeWait is how long a large request waits for memory.
const largeWait = 2 * time.Second

type largeKey struct{}

// largeRoom is the room of a request that may be large: one of the few places for these, and memory.
type largeRoom struct {
	rooms  rooms
	caller identity.Caller
	source string

	users  atomic.Int32 // it is given back when none is left: the call, and the attempt to receive its message
	late   <-chan struct{}
	came   func()
	free   func()
	share  *large.Share // nil until it is taken
	upward atomic.Int64 // bytes of the message
}

// take takes a place and memory for n bytes.
func (l *largeRoom) take(ctx context.Context, n int) (err error) {
	late, came, free, err := l.rooms.shares.Large(ctx, l.caller, l.source)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, largeWait)
	defer cancel()
	share, err := l.rooms.memory.Take(wait, n)
	if err != nil {
		free()
		if wait.Err() != nil && ctx.Err() == nil {
			err = rpcerr.TooMany("other large requests use the memory that there is for them", largeWait)
		}
		return err
	}
	l.late, l.came, l.free, l.share = late, came, free, share
	l.upward.Store(int64(n))
	return nil
}

// holds reports whether a message of n bytes is that for which the room was taken.
func (l *largeRoom) holds(n int) bool { return int64(n) <= l.upward.Load() }

func (l *largeRoom) leave() {
	if l.users.Add(-1) == 0 {
		l.Release()
	}
}

// Late implements rest.LargeRoom.
func (l *largeRoom) Late() <-chan struct{} { return l.late }

// Came implements rest.LargeRoom.
func (l *largeRoom) Came() {
	if l.came != nil {
		l.came()
	}
}

// Grow implements rest.LargeRoom.
func (l *largeRoom) Grow(n int) error {
	if err := l.share.Grow(n); err != nil {
		return err
	}
	l.upward.Store(int64(n))
	return nil
}

// Release implements rest.LargeRoom.
func (l *largeRoom) Release() {
	if l.share != nil {
		l.share.Release()
		l.free()
	}
}

// Memory implements rest.Room.
func (r rooms) Memory(q *http.Request, n int) (func(), error) {
	share, err := r.memory.TakeOrdinary(q.Context(), n)
	return share.Release, err
}

// Large implements rest.Room.
func (r rooms) Large(q *http.Request, caller identity.Caller, n int) (rest.LargeRoom, error) {
	l := &largeRoom{rooms: r, caller: caller, source: q.RemoteAddr}
	if err := l.take(q.Context(), n); err != nil {
		return nil, err
	}
	return l, nil
}
