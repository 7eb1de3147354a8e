// Package gcpace sets how far the heap of a process grows before the garbage collector runs: little while the process
// is quiet, so that an idle cluster is small, and further while it is busy, when collections would otherwise take a
// fifth of the processor time.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// busyPercent is how much the heap of a busy process may grow between collections, in percent of its live objects.
	busyPercent = 400
	// busyWithin is the time between two collections in which a process counts as busy.
	busyWithin = time.Second
	// mostBytes is the size up to which the heap of a busy process grows. A larger heap grows as that of a quiet one.
	mostBytes = 512 << 20
)

var once sync.Once

// Follow sets the pace of this process from now on, after each collection; further calls do nothing. quiet is the
// growth in percent while the process is not busy, as in GOGC. If the environment has GOGC, that remains in force.
// GOMEMLIMIT applies beside it.
func Follow(quiet int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	once.Do(func() {
		debug.SetGCPercent(quiet)
		p := &pace{quiet: quiet, now: quiet, last: time.Now()}
		p.end = time.AfterFunc(busyWithin, p.calm)
		p.watch()
	})
}

type pace struct {
	quiet int
	end   *time.Timer // of being busy

	mu   sync.Mutex
	now  int
	last time.Time // when the collection before ended
}

// watch has adapt called after the next collection, which finds the object that nothing refers to.
func (p *pace) watch() {
	sentinel := new([16]byte) // smaller ones may share an allocation that stays in use
	runtime.AddCleanup(sentinel, func(p *pace) { go p.adapt() }, p)
}

func (p *pace) adapt() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	p.mu.Lock()
	now := time.Now()
	percent := percentFor(p.quiet, live[0].Value.Uint64(), now.Sub(p.last))
	p.last = now
	p.set(percent)
	p.mu.Unlock()
	if percent != p.quiet {
		p.end.Reset(busyWithin)
	}
	p.watch()
}

// calm ends the busy time of a process that no longer allocates: otherwise it would keep its large heap until the
// runtime collects it after two minutes.
func (p *pace) calm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) >= busyWithin {
		p.set(p.quiet)
	}
}

// set sets the growth if it is another one: that stops the process for a moment. The lock is held.
func (p *pace) set(percent int) {
	if percent != p.now {
		debug.SetGCPercent(percent)
		p.now = percent
	}
}

// percentFor returns the growth in percent until the next collection, from the bytes that are live and the time since
// the collection before.
func percentFor(quiet int, live uint64, since time.Duration) int {
	if since >= busyWithin || live >= mostBytes {
		return quiet
	}
	return max(quiet, min(busyPercent, int((mostBytes-live)*100/max(live, 1))/10*10))
}
