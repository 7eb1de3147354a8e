// Package owner is the owner of the quorum hook towards hook-broker: it claims the hook's tasks and reports their
// progress, so that the reason why a machine waits is shown by `windlass hooks` and `windlass describe machine`. It
// decides nothing and completes nothing: the guardian takes the hook off the machine itself, and were hook-broker down
// nothing would change.
package owner

import (
	"context"
	"log/slog"
	"strings"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

const (
	// renewEvery is a third of how long a claim lasts by default.
	renewEvery = 20 * time.Second
	// tellEvery bounds how often progress is written down: often enough for people, seldom enough for etcd.
	tellEvery = 250 * time.Millisecond

	firstPause, longestPause = 100 * time.Millisecond, 2 * time.Second
)

// Owner attends the tasks of the quorum hook.
type Owner struct {
	Tasks hookv1.HookTaskServiceClient
	// Progress returns in one line what the guardian does or waits for, and a channel that is closed when that may have
	// changed.
	Progress func() (string, <-chan struct{})
	Log      *slog.Logger
}

// Run attends tasks until ctx ends.
func (o *Owner) Run(ctx context.Context) error {
	again := backoff.New(firstPause, longestPause)
	for ctx.Err() == nil {
		heard, err := o.attend(ctx)
		if heard {
			again.Reset()
		}
		o.Log.DebugContext(ctx, "stream of hook tasks broke off", "error", err)
		again.Wait(ctx)
	}
	return nil
}

// attend follows one stream and reports whether it brought anything.
func (o *Owner) attend(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := o.Tasks.StreamHookTasks(ctx, &hookv1.StreamHookTasksRequest{Owners: []string{plan.HookOwner}})
	if err != nil {
		return false, err
	}
	updates, failed := make(chan *hookv1.StreamHookTasksResponse), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case updates <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	told := map[string]string{} // progress that was said last of each open task
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		text, changed := o.Progress()
		if len(told) == 0 {
			changed = nil
		}
		select {
		case err := <-failed:
			return heard, err
		case m := <-updates:
			heard = true
			o.take(ctx, m, told)
			text, _ = o.Progress()
			o.report(ctx, text, told)
		case <-changed:
			o.report(ctx, text, told)
			if !rest(ctx) {
				return heard, ctx.Err()
			}
		case <-renew.C:
			for name := range told {
				told[name] = ""
			}
			o.report(ctx, text, told)
		}
	}
}

func rest(ctx context.Context) bool {
	t := time.NewTimer(tellEvery)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// take notes a task that is there, has changed or is gone, and claims it unless we hold it.
func (o *Owner) take(ctx context.Context, m *hookv1.StreamHookTasksResponse, told map[string]string) {
	name := m.GetTask().GetMetadata().GetName()
	if name == "" {
		return
	}
	if m.GetGone() {
		delete(told, name)
		return
	}
	switch m.GetTask().GetStatus().GetPhase() {
	case "Claimed":
		if _, ours := told[name]; !ours {
			told[name] = ""
		}
		return
	case "Completed":
		delete(told, name)
		return
	}
	if _, err := o.Tasks.ClaimHookTask(ctx, &hookv1.ClaimHookTaskRequest{Name: name}); err != nil {
		o.Log.DebugContext(ctx, "hook task not claimed", "hook", name, "error", err)
		return
	}
	told[name] = ""
}

// report reports the progress of the tasks whose text differs from the last report.
func (o *Owner) report(ctx context.Context, text string, told map[string]string) {
	const most = 1000 // characters; hook-broker takes 1024
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") // a character that is cut would have the call refused
	}
	for name, last := range told {
		if last == text {
			continue
		}
		if _, err := o.Tasks.RenewHookTask(ctx, &hookv1.RenewHookTaskRequest{Name: name, Message: text}); err != nil {
			o.Log.DebugContext(ctx, "hook task not renewed", "hook", name, "error", err)
			continue
		}
		told[name] = text
	}
}

// Describe returns what a plan does or waits for, in one line.
func Describe(p plan.Plan) string {
	switch {
	case p.WaitsFor != "":
		return "waits for " + p.WaitsFor
	case p.Next != nil:
		return string(p.Next.Kind) + ": " + p.Next.Reason
	}
	return "nothing to do"
}
