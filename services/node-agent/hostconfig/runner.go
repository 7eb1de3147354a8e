package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

const (
	// startWatch is how long a unit that has just been started is watched: one that fails at once does so within this.
	startWatch = 300 * time.Millisecond
	startLook  = 20 * time.Millisecond
	// steadyRun is how long a unit that ended at once in a new boot must have run since for it to count as started.
	steadyRun = 2 * time.Second
	// reloadLimit bounds one command that has a unit read its configuration again.
	reloadLimit = 90 * time.Second
)

// manager runs single units: the agent itself, or the systemd of the host.
type manager interface {
	// expect writes down which units are about to be wanted, before their files change.
	expect(is []unit) error
	// settled drops what was expected and is not of the units that are in force now.
	settled(is []unit) error
	// load has the files of units that are about to be started be read.
	load(ctx context.Context, fresh []unit) error
	// strays returns what runs and is not of the units, or is not as they are: an agent that was killed left it behind. In
	// a new boot it is all that has to be started again.
	strays(is []unit, boot bool) ([]string, error)
	// end ends a stray.
	end(ctx context.Context, stray string) error
	// start starts a unit that is not running; pre has its ExecStartPre run, too. It is an error if a oneshot unit fails.
	start(ctx context.Context, u unit, root *os.Root, pre bool) error
	// resume has a unit of the present configuration run, after a start of the agent or of the machine.
	resume(ctx context.Context, u unit, root *os.Root, boot bool) error
	// stop ends a unit that runs until it is stopped.
	stop(ctx context.Context, u unit) error
	// reload has a unit that runs read its configuration again.
	reload(ctx context.Context, u unit, root *os.Root) error
	// look returns what a unit that runs until it is stopped does; false if that is not known.
	look(ctx context.Context, u unit) (unitState, bool)
	// idle says which of the units that started do not run as they are to; empty if all do.
	idle(ctx context.Context, units []unit) string
}

// unitState is what a unit does.
type unitState struct {
	running  bool
	final    bool // it has ended, and is not started again
	worked   bool // the former, and it did what it was for
	pid      int  // of its process; 0 if it has none
	since    time.Time
	failed   string // how it failed last, in one line; empty if it did not
	failedAt time.Time
}

// runner has the units of configurations run.
type runner struct {
	manager
	// why units could not be started; it is read only while nothing is done
	failed map[string]string
}

// change ends the units that are no longer wanted, or not as they were, and starts the new ones. The error names the
// first that does not start.
func (r *runner) change(ctx context.Context, was, is []unit, root *os.Root) error {
	if err := r.stopAll(ctx, was, is); err != nil {
		return err
	}
	var fresh []unit
	for _, u := range is {
		if !contains(was, u) {
			fresh = append(fresh, u)
		}
	}
	if err := r.load(ctx, fresh); err != nil {
		return err
	}
	if err := r.startAll(ctx, fresh, root); err != nil {
		return err
	}
	for _, u := range is { // what keeps them from starting may be gone; that it is not is no fault of this change
		if r.failed[u.name] != "" && contains(was, u) {
			_ = r.startOne(ctx, u, root, true)
		}
	}
	return nil
}

// back ends what a failed change started and starts what it ended. A unit that does not start holds up none of the
// others, nor that the change is taken back: it is trouble.
func (r *runner) back(ctx context.Context, is, was []unit, root *os.Root) error {
	if err := r.stopAll(ctx, is, was); err != nil {
		return err
	}
	if err := r.load(ctx, nil); err != nil { // what of them cannot be read is trouble of theirs
		return err
	}
	for _, u := range was {
		if u.long() && !contains(is, u) {
			_ = r.startOne(ctx, u, root, false)
		}
	}
	return nil
}

// resumeAll has the units of the present configuration run: those that go on running are taken over. What an agent left
// behind in the middle of a change is ended. In a new boot everything starts again, the oneshot units, too. One that
// does not start holds up none of the others: see trouble, and late for what just started and did not stay up.
func (r *runner) resumeAll(ctx context.Context, is []unit, root *os.Root, boot bool) (late, error) {
	names, err := r.strays(is, boot)
	if err != nil {
		return late{}, err
	}
	for _, name := range names {
		if err := r.end(ctx, name); err != nil {
			return late{}, err
		}
	}
	if err := r.settled(is); err != nil {
		return late{}, err
	}
	if err := r.load(ctx, nil); err != nil {
		return late{}, err
	}
	if boot {
		clear(r.failed)
	}
	var watched []unit
	began := time.Now()
	for _, u := range is {
		err := r.resume(ctx, u, root, boot)
		r.note(ctx, u, err, boot)
		if err == nil && u.long() {
			watched = append(watched, u)
		}
	}
	var l late
	if boot && len(watched) > 0 {
		if err := r.watch(ctx, watched, began); err != nil {
			l = late{watched, err.Error()}
		}
	}
	return l, ctx.Err()
}

// late are units of which one ended at once in a new boot. It may need another unit, and is started again and again: so
// this is no trouble any more once all of them run. The zero late is none.
type late struct {
	units []unit
	why   string
}

// steady reports whether each of the units has run for a while, or has done its work.
func (r *runner) steady(ctx context.Context, units []unit) bool {
	return !slices.ContainsFunc(units, func(u unit) bool {
		s, known := r.look(ctx, u)
		return !known || !s.worked && !(s.running && time.Since(s.since) >= steadyRun)
	})
}

func contains(units []unit, u unit) bool {
	for _, o := range units {
		if o.name == u.name && o.text == u.text {
			return true
		}
	}
	return false
}

func (r *runner) stopAll(ctx context.Context, was, is []unit) error {
	for _, u := range was {
		if contains(is, u) {
			continue
		}
		if err := r.stop(ctx, u); err != nil {
			return fmt.Errorf("unit %q: %w", u.name, err)
		}
	}
	return nil
}

// startAll starts units in order.
func (r *runner) startAll(ctx context.Context, units []unit, root *os.Root) error {
	var watched []unit
	began := time.Now()
	for _, u := range units {
		if err := r.startOne(ctx, u, root, true); err != nil {
			return fmt.Errorf("unit %q: %w", u.name, err)
		}
		if u.long() {
			watched = append(watched, u)
		}
	}
	if len(watched) == 0 {
		return nil
	}
	return r.watch(ctx, watched, began)
}

// renew has services that run on see a change of what they read. Those that were started for the change have seen it.
// The error names the first that does not.
func (r *runner) renew(ctx context.Context, services []*configv1.ServiceAction, was, is []unit, root *os.Root) error {
	for _, s := range services {
		i := slices.IndexFunc(is, func(u unit) bool { return u.name == s.GetName() })
		if i < 0 || !contains(was, is[i]) {
			continue
		}
		if err := r.renewAndWatch(ctx, is[i], s.GetReload(), root); err != nil {
			return fmt.Errorf("unit %q: %w", s.GetName(), err)
		}
	}
	return nil
}

// renewAndWatch reloads or restarts a unit, and waits until it has run for a moment.
func (r *runner) renewAndWatch(ctx context.Context, u unit, reload bool, root *os.Root) error {
	s, _ := r.look(ctx, u)
	switch {
	case reload && s.final:
		return nil // it has ended, and reads nothing
	case reload && s.running:
		began := time.Now()
		if err := r.reload(ctx, u, root); err != nil {
			return err
		}
		return r.watch(ctx, []unit{u}, began)
	}
	return r.restart(ctx, u, root) // also one that is not taken over yet: it may have read what was there before
}

func (r *runner) restart(ctx context.Context, u unit, root *os.Root) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.stopAll(context.WithoutCancel(ctx), []unit{u}, nil); err != nil {
		return err
	}
	began := time.Now() // the end of what was stopped is no end of what is started
	err := r.startOne(ctx, u, root, true)
	switch {
	case ctx.Err() != nil && u.long(): // it is not left ended
		return errors.Join(ctx.Err(), r.startOne(context.WithoutCancel(ctx), u, root, false))
	case err != nil || !u.long():
		return err
	}
	return r.watch(ctx, []unit{u}, began)
}

func (r *runner) startOne(ctx context.Context, u unit, root *os.Root, pre bool) error {
	err := r.start(ctx, u, root, pre)
	r.note(ctx, u, err, pre)
	return err
}

// note remembers whether a unit could be started.
func (r *runner) note(ctx context.Context, u unit, err error, pre bool) {
	switch {
	case err != nil && ctx.Err() == nil:
		r.failed[u.name] = fmt.Sprintf("unit %q: %v", u.name, err)
	case err == nil && (pre || u.long() && len(u.pre) == 0):
		delete(r.failed, u.name)
	}
}

// recovered forgets that units could not be started which run now, or have worked since: an administrator may have
// started them.
func (r *runner) recovered(ctx context.Context, units []unit) {
	for _, u := range units {
		if s, known := r.look(ctx, u); r.failed[u.name] != "" && known && (s.running || s.worked) {
			delete(r.failed, u.name)
		}
	}
}

// trouble names the units that could not be started; empty if there are none.
func (r *runner) trouble() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r.failed)) {
		out = append(out, r.failed[name])
	}
	return strings.Join(out, "\n")
}

// watch waits until units have run for a moment; the error names the first that ended instead.
func (r *runner) watch(ctx context.Context, units []unit, began time.Time) error {
	ticker := time.NewTicker(startLook)
	defer ticker.Stop()
	for end := time.Now().Add(startWatch); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for _, u := range units {
			if s, _ := r.look(ctx, u); s.failed != "" && s.failedAt.After(began) {
				return errors.New(s.failed)
			}
		}
	}
	return nil
}
