// Package host plays what runs on the simulated instances: each joins the cluster with its token as a node of its own,
// over a connection of its own, and says that it lives. Pods that are bound to it are reported as running, and as gone
// once they are deleted; no process runs. It follows no machine configuration and runs no etcd member.
package host

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/services/provider-simulated/fleet"
)

const (
	// joiners is how many instances join at a time: a gateway has room for so many callers of one address that have no
	// certificate yet.
	joiners = 4
	// Pauses between sessions, of a machine that boots while much else starts.
	firstPause, longPause = 200 * time.Millisecond, 5 * time.Second
	// longSession is how long a session must have lasted for the next pause to be the shortest again.
	longSession = 5 * time.Second

	callPatience = 10 * time.Second
)

// errReboot ends a session whose node the cluster wants to be restarted.
var errReboot = errors.New("a reboot was asked for")

// Run has the instances of a fleet be nodes while they are Running, until ctx ends.
func Run(ctx context.Context, f *fleet.Fleet, log *slog.Logger) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := f.Watch()
	defer watch.Close()
	room := make(chan struct{}, joiners)
	stops := map[string]context.CancelFunc{}
	for {
		for _, change := range watch.Next() {
			i := change.GetInstance()
			id := i.GetProviderId()
			runs := !change.GetDeleted() && i.GetState() == fleet.Running
			stop, has := stops[id]
			switch {
			case runs && !has:
				order, fate, ok := f.Node(id)
				if !ok || fate.Absent {
					continue
				}
				own, stop := context.WithCancel(ctx)
				stops[id] = stop
				h := &host{instance: i, order: order, fate: fate, boot: rand.Text(), log: log.With("instance", id)}
				running.Go(func() { h.run(own, room) })
			case has && !runs:
				stop()
				delete(stops, id)
			}
		}
		if !watch.Wait(ctx) {
			return nil
		}
	}
}

// run plays one instance until ctx ends.
func (h *host) run(ctx context.Context, room chan struct{}) {
	again := backoff.Spread(firstPause, longPause)
	for try := 0; h.joined == nil; try++ {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := h.join(ctx, try)
		<-room
		if err == nil {
			break
		}
		h.say(ctx, "not joined yet", err)
		if !again.Wait(ctx) {
			return
		}
	}
	again.Reset()
	alive := ctx
	if h.fate.Silent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.fate.After)
		defer cancel()
	}
	for try := 0; ; try++ {
		began := time.Now()
		err := h.session(ctx, try)
		if errors.Is(err, errReboot) {
			h.boot = rand.Text()
		}
		if err != nil {
			h.say(ctx, "session broke off", err)
		}
		if time.Since(began) > longSession {
			again.Reset()
		}
		if !again.Wait(ctx) {
			break
		}
	}
	if alive.Err() == nil {
		h.log.InfoContext(alive, "node is silent from now on, as the flags ask for")
	}
}

// say logs an error unless it is the one before.
func (h *host) say(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && err.Error() != h.said {
		h.said = err.Error()
		h.log.InfoContext(ctx, what, "error", err)
	}
}
