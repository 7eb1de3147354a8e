package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/supervision"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

var (
	now    = time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	own    = plan.Executable{Version: "0.1.0"}
	next   = plan.Executable{Image: "windlass.dev/windlass@sha256:aa", Version: "0.2.0"}
	former = plan.Executable{Image: "windlass.dev/windlass@sha256:bb", Version: "0.1.9"}
)

func TestProgram(t *testing.T) {
	refused := &plan.Refusal{Executable: next, Generation: 2, Reason: plan.RolledBack, Message: "It is back."}
	trial := plan.Record{Running: next, Previous: former, OnTrial: true, Generation: 2}
	for name, c := range map[string]struct {
		view        plan.View
		verb        plan.Verb
		record      plan.Record // as it is to be, if it is to change
		progressing bool
		reason      string
		words       string // of the message
	}{
		"nothing is known and nothing is open": {
			view: plan.View{Record: plan.Record{Running: former}},
		},
		"it runs what is wanted": {
			view:   plan.View{Record: plan.Record{Running: next}, Known: true, Wanted: wanted(next, 2)},
			reason: supervision.Updated, words: "It runs version 0.2.0 from windlass.dev/windlass@sha256:aa.",
		},
		"what is wanted is not here yet": {
			view: plan.View{Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2)},
			verb: plan.Stage, progressing: true, reason: plan.Fetching, words: "is read from",
		},
		"what is wanted was not read, a moment ago": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), StageErr: "no such image",
				Tries: 1, Tried: now.Add(-time.Second),
			},
			progressing: true, reason: plan.NotFetched, words: "no such image. It is tried again at 2026-11-29T03:00:01Z.",
		},
		"what is wanted was not read, some time ago": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), StageErr: "no such image",
				Tries: 1, Tried: now.Add(-2 * time.Second),
			},
			verb: plan.Stage, progressing: true, reason: plan.NotFetched, words: "no such image",
		},
		"the pause between tries is bounded": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), StageErr: "no such image",
				Tries: 1000, Tried: now.Add(-5 * time.Minute),
			},
			verb: plan.Stage, progressing: true, reason: plan.NotFetched,
		},
		"what is wanted cannot be run": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), Unfit: true,
				StageErr: "it is of version 3", Now: now,
			},
			verb: plan.Settle, reason: plan.CannotRun, words: "cannot be run: it is of version 3",
			record: plan.Record{Running: own, Refused: &plan.Refusal{Executable: next, Generation: 2}},
		},
		"another program is on trial": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), Staged: true, Other: "scheduler",
			},
			progressing: true, reason: supervision.AwaitsPrograms, words: "waits for scheduler",
		},
		"it is not here yet while another program is on trial": {
			view: plan.View{Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), Other: "scheduler"},
			verb: plan.Stage, progressing: true, reason: plan.Fetching,
		},
		"another host changes": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), Staged: true,
				Turn: "host h2 changes now",
			},
			progressing: true, reason: supervision.AwaitsTurn, words: "and waits: host h2 changes now.",
		},
		"it is this host's turn, and it must not begin": {
			view: plan.View{
				Record: plan.Record{Running: own}, Known: true, Wanted: wanted(next, 2), Staged: true,
				Turn: "it must not begin now", Held: true,
			},
			progressing: true, reason: supervision.TurnHeld, words: "and waits: it must not begin now.",
		},
		"it is back at what is wanted, and its process is not there yet": {
			view: plan.View{
				Record: plan.Record{Running: former}, Known: true, Wanted: wanted(former, 3), Elsewhere: true,
			},
			progressing: true, reason: plan.Returning, words: "It is started with version 0.1.9",
		},
		"it goes back, also while another host changes": {
			view: plan.View{Record: trial, Known: true, Wanted: wanted(next, 2), Starts: 4, Turn: "host h2 changes now"},
			verb: plan.Return, reason: plan.RolledBack,
			record: plan.Record{Running: former, Refused: &plan.Refusal{Executable: next, Generation: 2}},
		},
		"it changes": {
			view: plan.View{Record: plan.Record{Running: former}, Known: true, Wanted: wanted(next, 2), Staged: true},
			verb: plan.Switch, record: trial, progressing: true, reason: supervision.Starting,
		},
		"it changes to the executable of the cluster": {
			view: plan.View{Record: plan.Record{Running: next}, Known: true, Wanted: wanted(own, 0), Staged: true},
			verb: plan.Switch, record: plan.Record{Running: own, Previous: next, OnTrial: true}, progressing: true,
			reason: supervision.Starting, words: "the executable that the cluster was started with",
		},
		"it is not ready yet": {
			view:        plan.View{Record: trial, Known: true, Wanted: wanted(next, 2), Trial: 59 * time.Second, Starts: 3},
			progressing: true, reason: supervision.Starting,
		},
		"it is not ready for long enough yet": {
			view: plan.View{
				Record: trial, Known: true, Wanted: wanted(next, 2), ReadyFor: plan.Settled - time.Millisecond, Starts: 1,
			},
			progressing: true, reason: supervision.Starting,
		},
		"it is up": {
			view: plan.View{Record: trial, Known: true, Wanted: wanted(next, 2), ReadyFor: plan.Settled, Starts: 1},
			verb: plan.Settle, record: plan.Record{Running: next, Previous: former, Generation: 2}, reason: supervision.Updated,
		},
		"it is up, and something else is wanted by now": {
			view: plan.View{Record: trial, Known: true, Wanted: wanted(own, 0), ReadyFor: plan.Settled, Starts: 1},
			verb: plan.Settle, record: plan.Record{Running: next, Previous: former, Generation: 2}, progressing: true,
			reason: supervision.Updated,
		},
		"it exits again and again": {
			view: plan.View{Record: trial, Known: true, Wanted: wanted(next, 2), Starts: 4, Last: "a panic.\n"},
			verb: plan.Return, reason: plan.RolledBack,
			record: plan.Record{Running: former, Refused: &plan.Refusal{Executable: next, Generation: 2}},
			words:  "it exits after each start; its log ends with: a panic.",
		},
		"it is not ready in time, and the cluster cannot be asked": {
			view: plan.View{Record: trial, Trial: plan.Patience, Starts: 1},
			verb: plan.Return, reason: plan.RolledBack,
			record: plan.Record{Running: former, Refused: &plan.Refusal{Executable: next, Generation: 2}},
			words:  "It was taken back to version 0.1.9 from windlass.dev/windlass@sha256:bb, since it did not come up with version 0.2.0",
		},
		"it exits again and again, and something else is wanted by now": {
			view: plan.View{Record: trial, Known: true, Wanted: wanted(own, 3), Starts: 4},
			verb: plan.Return, reason: plan.RolledBack, progressing: true,
			record: plan.Record{Running: former, Refused: &plan.Refusal{Executable: next, Generation: 2}},
		},
		"the executable of the cluster did not come up, a moment ago": {
			view: plan.View{
				Record: plan.Record{Running: next, Refused: &plan.Refusal{
					Executable: own, Reason: plan.RolledBack, At: now.Add(-59 * time.Second),
				}}, Known: true, Wanted: wanted(own, 0), Staged: true,
			},
			reason: plan.RolledBack,
		},
		"the executable of the cluster did not come up, some time ago": {
			view: plan.View{
				Record: plan.Record{Running: next, Refused: &plan.Refusal{
					Executable: own, Reason: plan.RolledBack, At: now.Add(-time.Minute),
				}}, Known: true, Wanted: wanted(own, 0), Staged: true,
			},
			verb: plan.Switch, record: plan.Record{Running: own, Previous: next, OnTrial: true}, progressing: true,
			reason: supervision.Starting,
		},
		"what it did not come up from is still wanted": {
			view: plan.View{
				Record: plan.Record{Running: former, Refused: refused}, Known: true, Wanted: wanted(next, 2), Staged: true,
			},
			reason: plan.RolledBack, words: "It is back.",
		},
		"what it did not come up from is wanted again": {
			view: plan.View{
				Record: plan.Record{Running: former, Refused: refused}, Known: true, Wanted: wanted(next, 4), Staged: true,
			},
			verb: plan.Switch, record: plan.Record{Running: next, Previous: former, OnTrial: true, Generation: 4},
			progressing: true, reason: supervision.Starting,
		},
		"what it did not come up from is wanted no more": {
			view: plan.View{
				Record: plan.Record{Running: former, Refused: refused}, Known: true, Wanted: wanted(former, 3),
			},
			verb: plan.Settle, record: plan.Record{Running: former}, reason: supervision.Updated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.view
			v.Now = now
			got := plan.Program(v)
			if got.Verb != c.verb || got.Progressing != c.progressing || got.Reason != c.reason ||
				!strings.Contains(got.Message, c.words) {
				t.Errorf("got %q, progressing %v, %s: %s", got.Verb, got.Progressing, got.Reason, got.Message)
			}
			want := c.record
			if want.Running == (plan.Executable{}) {
				want = v.Record
			}
			if r := got.Record; r.Running != want.Running || r.Previous != want.Previous || r.OnTrial != want.OnTrial ||
				r.Generation != want.Generation || (r.Refused == nil) != (want.Refused == nil) {
				t.Errorf("record %+v, want %+v", r, want)
			}
			if r, w := got.Record.Refused, want.Refused; r != nil && w != nil &&
				(r.Executable != w.Executable || r.Generation != w.Generation) {
				t.Errorf("refused %+v, want %+v", r, w)
			}
		})
	}
}

func wanted(e plan.Executable, generation int32) plan.Wanted {
	return plan.Wanted{Executable: e, Generation: generation}
}
