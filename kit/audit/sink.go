package audit

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
)

const (
	// sinkQueue bounds what waits for a sink, in bytes.
	sinkQueue = 8 << 20
	// sinkBatch is how many records a sink gets at a time, at most.
	sinkBatch = 256
	// sinkTimeout bounds one delivery.
	sinkTimeout = 5 * time.Second
	// sinkRetry and sinkRetryMax are the first and the longest pause after a delivery that failed.
	sinkRetry    = 200 * time.Millisecond
	sinkRetryMax = 15 * time.Second
	// sinkGrace is what a sink gets at the end for what still waits.
	sinkGrace = time.Second
)

// Line is one record on its way to a sink.
type Line struct {
	Service string
	Log     string // one of Files
	Text    []byte // with its newline
}

// Sink takes records beyond the host. Send delivers lines in order and returns when they were taken, or when ctx ends;
// after an error the same lines come again. String names the sink in logs and metrics, without secrets.
type Sink interface {
	Send(ctx context.Context, lines []Line) error
	Close() error
	fmt.Stringer
}

// ParseSink makes the sink that a setting names; nothing is opened yet.
//
//	file:/DIR                  files SERVICE.audit.log, SERVICE.reads.log and SERVICE.refusals.log in a directory
//	syslog://HOST:PORT         RFC 5424 over UDP; syslog+tcp://HOST:PORT over TCP; syslog+unix:/dev/log on this host
//	otlp://HOST:PORT           OpenTelemetry logs over gRPC without TLS; otlps: with TLS and the host's authorities
func ParseSink(setting string) (Sink, error) {
	u, err := url.Parse(setting)
	if err != nil {
		return nil, fmt.Errorf("audit sink: %w", err)
	}
	path := u.Path
	switch u.Scheme {
	case "file":
		if u.Host == "" && path != "" && path[0] == '/' {
			return newFileSink(path), nil
		}
	case "syslog":
		return networkSyslog("udp", u)
	case "syslog+tcp":
		return networkSyslog("tcp", u)
	case "syslog+unix":
		if u.Host == "" && path != "" && path[0] == '/' {
			return newSyslog("unixgram", path), nil
		}
	case "otlp", "otlps":
		if u.Port() != "" {
			return newOTLP(u.Host, u.Scheme == "otlps")
		}
	}
	return nil,
		fmt.Errorf(
			"audit sink %q: must be file:/DIR, syslog://HOST:PORT, syslog+tcp://HOST:PORT, syslog+unix:/PATH, otlp://HOST:PORT or otlps://HOST:PORT", setting)
}

// forwarder hands records to one sink. What the sink does not take in time is dropped and counted.
type forwarder struct {
	sink    Sink
	service string
	log     *slog.Logger
	stop    context.CancelFunc
	done    chan struct{}
	wake    chan struct{}
	ending  chan struct{} // closed when the trail closes

	mu      sync.Mutex
	queue   []Line
	bytes   int
	sent    uint64
	dropped uint64
	closing bool
}

func forwardTo(s Sink, service string, log *slog.Logger) *forwarder {
	ctx, stop := context.WithCancel(context.Background())
	f := &forwarder{
		sink: s, service: service, log: log, stop: stop, done: make(chan struct{}),
		wake: make(chan struct{}, 1), ending: make(chan struct{}),
	}
	go f.run(ctx)
	return f
}

// offer queues a line; it never waits.
func (f *forwarder) offer(l Line) {
	l.Service = f.service
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bytes+len(l.Text) > sinkQueue || f.closing {
		f.dropped++
		return
	}
	f.queue, f.bytes = append(f.queue, l), f.bytes+len(l.Text)
	f.poke()
}

func (f *forwarder) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *forwarder) run(ctx context.Context) {
	defer close(f.done)
	again, failing, ending := backoff.New(sinkRetry, sinkRetryMax), false, f.ending
	for {
		lines, last := f.next()
		if len(lines) == 0 {
			if last {
				return
			}
			select {
			case <-f.wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		err := f.deliver(ctx, lines)
		if err == nil {
			if failing {
				f.log.Info("the audit sink takes records again", "sink", f.sink.String())
			}
			failing = false
			again.Reset()
			f.taken(len(lines))
			continue
		}
		if !failing {
			f.log.Error("the audit sink takes no records", "sink", f.sink.String(), "error", err)
		}
		failing = true
		select {
		case <-time.After(again.Next()):
		case <-ending: // a long pause would outlast the grace
			ending = nil
			again.Reset()
		case <-ctx.Done():
			return
		}
	}
}

func (f *forwarder) deliver(ctx context.Context, lines []Line) error {
	ctx, cancel := context.WithTimeout(ctx, sinkTimeout)
	defer cancel()
	return f.sink.Send(ctx, lines)
}

func (f *forwarder) next() (lines []Line, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue[:min(len(f.queue), sinkBatch)], f.closing
}

func (f *forwarder) taken(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.queue[:n] {
		f.bytes -= len(l.Text)
	}
	f.queue = f.queue[n:]
	f.sent += uint64(n)
	if len(f.queue) == 0 {
		f.queue = nil // or the array behind it would only grow
	}
}

func (f *forwarder) counts() (sent, dropped uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, f.dropped
}

// close gives the sink a moment for what waits.
func (f *forwarder) close() error {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	close(f.ending)
	f.poke()
	timer := time.AfterFunc(sinkGrace, f.stop)
	defer timer.Stop()
	<-f.done
	f.stop()
	return f.sink.Close()
}
