package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	callLimit     = 10 * time.Second       // for one call
	shortestClaim = time.Second            // that the cluster grants
	firstPause    = 100 * time.Millisecond // between attempts; it doubles
	mostPause     = 3 * time.Second
	afterFail     = 5 * time.Second // before failed work is retried
)

// errClaimLost ends the work on a task whose claim expired or may have: another owner may have claimed it.
var errClaimLost = errors.New("the claim was lost")

// owner answers for one owner of hooks.
type owner struct {
	settings
	client hookv1.HookTaskServiceClient

	out   sync.Mutex
	print io.Writer

	mu       sync.Mutex
	works    map[string]context.CancelFunc // by the task's name: work in progress
	group    sync.WaitGroup
	finished chan struct{} // receives a value when a task is completed
}

func newOwner(s settings, client hookv1.HookTaskServiceClient, stdout io.Writer) *owner {
	return &owner{
		settings: s, client: client, print: stdout,
		works: map[string]context.CancelFunc{}, finished: make(chan struct{}, 1),
	}
}

// say prints a line with the time.
func (o *owner) say(format string, args ...any) {
	o.out.Lock()
	defer o.out.Unlock()
	fmt.Fprintf(o.print, "%s  %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// run follows the stream of tasks until ctx ends, and opens a new one whenever it breaks. Work in progress continues
// between streams: it depends on the claim, which needs no stream.
func (o *owner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer o.group.Wait()
	defer cancel()
	if o.once {
		o.group.Go(func() {
			select {
			case <-o.finished:
				cancel()
			case <-ctx.Done():
			}
		})
	}
	o.say("answering for %s at %s", o.settings.owner, o.target.server)
	for wait := firstPause; ; wait = min(2*wait, mostPause) {
		received, err := o.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		switch status.Code(err) {
		case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
			return fmt.Errorf("stream tasks of %s: %w", o.settings.owner, err) // a retry would not help
		}
		if received {
			wait = firstPause
		}
		o.say("stream broke: %s; again in %v", status.Convert(err).Message(), wait)
		pause(ctx, wait)
	}
}

// follow handles the messages of one stream; received reports whether there were any.
func (o *owner) follow(ctx context.Context) (received bool, err error) {
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := o.client.StreamHookTasks(listening, &hookv1.StreamHookTasksRequest{Owners: []string{o.settings.owner}})
	if err != nil {
		return false, err
	}
	there := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			return received, err
		}
		received = true
		switch t := m.GetTask(); {
		case t == nil:
			o.say("connected; %d tasks wait, watching for more", there)
		case m.GetGone():
			o.say("gone       %s: the hook was removed", describe(t))
			o.stop(t.GetMetadata().GetName())
		default:
			there++
			o.take(ctx, t)
		}
	}
}

// take starts the work on a task, unless it is in progress or claimed by another owner.
func (o *owner) take(ctx context.Context, t *hookv1.HookTask) {
	if t.GetStatus().GetPhase() == "Completed" {
		return
	}
	name := t.GetMetadata().GetName()
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, busy := o.works[name]; busy {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	o.works[name] = cancel
	o.group.Go(func() {
		defer o.stop(name)
		o.work(ctx, t)
	})
}

// stop ends the work on a task.
func (o *owner) stop(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cancel, ok := o.works[name]; ok {
		cancel()
		delete(o.works, name)
	}
}

// work claims a task, does what it asks for and completes it. It gives up when the task is claimed by another owner or
// deleted: the stream reports when it is free again.
func (o *owner) work(ctx context.Context, t *hookv1.HookTask) {
	for ctx.Err() == nil {
		claimed, sent, err := o.claim(ctx, t)
		if err != nil {
			o.say("not mine   %s: %s", describe(t), status.Convert(err).Message())
			return
		}
		o.say("claimed    %s until %s", describe(claimed), claimed.GetStatus().GetClaimExpiryTime().AsTime().Local().Format(
			"15:04:05"))
		result, err := o.perform(ctx, claimed, sent)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			o.complete(ctx, claimed, result)
			return
		case errors.Is(err, errClaimLost):
			continue // the first to claim it has it
		}
		o.fail(ctx, claimed, err)
		pause(ctx, afterFail)
	}
}

// claim returns the claimed task and when the claim was sent: by this process's own clock it lasts from then.
func (o *owner) claim(ctx context.Context, t *hookv1.HookTask) (claimed *hookv1.HookTask, sent time.Time, err error) {
	err = o.call(ctx, func(ctx context.Context) error {
		sent = time.Now()
		claimed, err = o.client.ClaimHookTask(ctx, &hookv1.ClaimHookTaskRequest{Name: t.GetMetadata().GetName()})
		return err
	})
	return claimed, sent, err
}

// lasts returns for how long a claim holds at least. Its times are those of the cluster, whose clock may differ from
// ours, in whole seconds: the beginning is rounded down, the end up.
func lasts(t *hookv1.HookTask) time.Duration {
	s := t.GetStatus()
	return max(s.GetClaimExpiryTime().AsTime().Sub(s.GetClaimTime().AsTime())-2*time.Second, shortestClaim/2)
}

// perform does the work of a task that was claimed at sent and renews the claim in the meantime. If the claim is lost,
// or was not renewed in time, the work ends with errClaimLost.
func (o *owner) perform(ctx context.Context, t *hookv1.HookTask, sent time.Time) (result string, err error) {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewing, done := context.WithCancel(working)
	var group sync.WaitGroup
	defer group.Wait()
	defer done()
	group.Go(func() {
		if err := o.renew(renewing, t, sent); err != nil && renewing.Err() == nil {
			o.say("lost       %s: %s", describe(t), status.Convert(err).Message())
			cancel(errClaimLost)
		}
	})
	result, err = job{o.settings, t}.do(working)
	if cause := context.Cause(working); cause != nil {
		return "", cause
	}
	return result, err
}

// renew extends a claim after each third of its duration, until ctx ends, the claim is lost, or it may have ended
// because no renewal was answered in time.
func (o *owner) renew(ctx context.Context, t *hookv1.HookTask, sent time.Time) error {
	begun, held := time.Now(), lasts(t)
	for {
		if !pause(ctx, held/3) {
			return nil
		}
		limited, cancel := context.WithDeadline(ctx, sent.Add(held))
		var tried time.Time
		err := o.call(limited, func(ctx context.Context) error {
			tried = time.Now()
			renewed, err := o.client.RenewHookTask(ctx, &hookv1.RenewHookTaskRequest{
				Name: t.GetMetadata().GetName(), Message: fmt.Sprintf("at work for %v", time.Since(begun).Round(time.Second)),
			})
			if err == nil {
				t = renewed
			}
			return err
		})
		cancel()
		if err != nil {
			return err
		}
		sent = tried
		o.say("renewed    %s until %s", describe(t), t.GetStatus().GetClaimExpiryTime().AsTime().Local().Format("15:04:05"))
	}
}

// complete retries until the cluster has recorded that the work is done; the machine then continues without this owner.
func (o *owner) complete(ctx context.Context, t *hookv1.HookTask, result string) {
	err := o.call(ctx, func(ctx context.Context) error {
		_, err := o.client.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{
			Name:    t.GetMetadata().GetName(),
			Message: result,
		})
		return err
	})
	if err != nil && status.Code(err) != codes.NotFound { // a deleted task was completed or is not needed any more
		o.say("not done   %s: %s", describe(t), status.Convert(err).Message())
		return
	}
	o.say("completed  %s: %s", describe(t), result)
	select {
	case o.finished <- struct{}{}:
	default:
	}
}

func (o *owner) fail(ctx context.Context, t *hookv1.HookTask, cause error) {
	err := o.call(ctx, func(ctx context.Context) error {
		_, err := o.client.FailHookTask(ctx, &hookv1.FailHookTaskRequest{
			Name:   t.GetMetadata().GetName(),
			Reason: short(cause.Error()),
		})
		return err
	})
	o.say("failed     %s: %v; again in %v", describe(t), cause, afterFail)
	if err != nil {
		o.say("unheard    %s: %s", describe(t), status.Convert(err).Message())
	}
}

// call makes a call and retries it while the cluster cannot be reached. All these calls are idempotent.
func (o *owner) call(ctx context.Context, f func(context.Context) error) error {
	for wait := firstPause; ; wait = min(2*wait, mostPause) {
		limited, cancel := context.WithTimeout(ctx, callLimit)
		err := f(limited)
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
			if pause(ctx, wait) {
				continue
			}
		}
		return err
	}
}

// describe returns a readable name of a task.
func describe(t *hookv1.HookTask) string {
	s := t.GetSpec()
	return fmt.Sprintf("%s %s of machine %s", s.GetPoint(), s.GetHookName(), s.GetMachineRef().GetName())
}

// short truncates a text to the limit of a message.
func short(s string) string {
	const most = 1000
	if r := []rune(s); len(r) > most {
		return string(r[:most])
	}
	return s
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
