package plan

import (
	"fmt"
	"strings"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/webhook"
	"google.golang.org/protobuf/proto"
)

// brokerUser is the user that acts for owners by their webhooks, and after timeouts.
const brokerUser = "system:windlass:hook-broker"

const (
	defaultCall  = 10 * time.Second // how long a call may take
	shortestCall = time.Second
	longestCall  = 30 * time.Second

	firstRetry   = time.Second // after a call failed; doubled after each further failure
	longestRetry = 5 * time.Minute
	askAgain     = 10 * time.Second // after an answer that the work goes on, and says nothing else
	longestAsk   = time.Hour
	afterFailure = time.Minute      // after an answer that the work failed
	claimSlack   = 30 * time.Second // how much longer than to the next answer a claim lasts
)

// inProgress is the state in an answer that says that the work goes on. The others are those of a task.
const inProgress = "InProgress"

// Answer is what a webhook answers.
type Answer struct {
	State      string `json:"state"` // Completed, InProgress or Failed
	Message    string `json:"message"`
	Percent    *int32 `json:"progressPercent"`
	RetryAfter int    `json:"retryAfterSeconds"` // until the next call; 0 means the default
}

// Check returns what is wrong with an answer.
func (a Answer) Check() error {
	switch {
	case a.State != Completed && a.State != inProgress && a.State != Failed:
		return fmt.Errorf("state: %q must be Completed, InProgress or Failed", a.State)
	case a.Percent != nil && (*a.Percent < 0 || *a.Percent > 100):
		return fmt.Errorf("progressPercent: %d must be 0 to 100", *a.Percent)
	case a.RetryAfter < 0 || a.RetryAfter > int(longestAsk/time.Second):
		return fmt.Errorf("retryAfterSeconds: %d must be 0 to %d", a.RetryAfter, int(longestAsk/time.Second))
	}
	return nil
}

// CallTimeout returns how long a call of the owner's webhook may take.
func (o OwnerFacts) CallTimeout() time.Duration {
	return setting(o.Settings.GetWebhook().GetTimeout(), defaultCall)
}

// NextCall returns when the webhook of its owner is called about a task; ok is false if it is not, because there is
// none, the task is not due or is completed, or another user works on it.
func NextCall(t *hookv1.HookTask, owner OwnerFacts, now time.Time) (at time.Time, ok bool) {
	s := t.GetStatus()
	switch {
	case owner.Settings.GetWebhook() == nil, s.GetPhase() == Waiting, s.GetPhase() == Completed,
		s.GetPhase() == Claimed && s.GetClaimedBy() != brokerUser:
		return time.Time{}, false
	case s.GetWebhook().GetNextTime() == nil:
		return now, true
	}
	return s.GetWebhook().GetNextTime().AsTime(), true
}

// call has the webhook of a task's owner called when that is due.
func (p *planner) call(t *hookv1.HookTask, owner OwnerFacts) {
	at, ok := NextCall(t, owner, p.Now)
	switch {
	case !ok:
	case at.After(p.Now):
		p.plan.wake(at)
	default:
		p.plan.Do = append(p.plan.Do, Action{
			Verb: CallWebhook, Task: t, Reason: "the webhook of its owner is due: " +
				webhook.Shown(owner.Settings.GetWebhook().GetUrl()),
		})
	}
}

// Answered returns the status of a task about which the webhook of its owner was called: what the answer says, or that
// there was none. events are to be recorded about the machine.
func Answered(t *hookv1.HookTask, owner OwnerFacts, a Answer, failure error, now time.Time) (s *hookv1.HookTaskStatus,
	events []Event, err error,
) {
	by := By{User: brokerUser, Answers: true}
	if failure != nil {
		return unanswered(t, failure, now)
	}
	next := time.Duration(a.RetryAfter) * time.Second
	switch a.State {
	case Completed:
		s, err = Complete(t, by, now, brief(a.Message, ""))
	case Failed:
		if next == 0 {
			next = afterFailure
		}
		s, err = Fail(t, by, now, brief(a.Message, "the webhook answered Failed without a message"))
	default:
		if next == 0 {
			next = askAgain
		}
		s, err = progressed(t, by, now, next+owner.CallTimeout()+claimSlack, a)
	}
	if err != nil {
		return nil, nil, err
	}
	calls := s.GetWebhook()
	if calls == nil {
		calls = &hookv1.WebhookCalls{}
	}
	s.Webhook = &hookv1.WebhookCalls{
		Attempts: proto.Int32(calls.GetAttempts() + 1), LastTime: floor(now), Failures: proto.Int32(0),
	}
	if s.GetPhase() != Completed {
		s.Webhook.NextTime = ceiling(now.Add(next))
	}
	if phase := s.GetPhase(); phase != t.GetStatus().GetPhase() {
		typ := normal
		if phase == Failed {
			typ = warning
		}
		events = append(events, About(t, typ, "Hook"+phase, s.GetMessage()))
	}
	return s, events, nil
}

// progressed claims a task or renews its claim.
func progressed(t *hookv1.HookTask, by By, now time.Time, lasts time.Duration, a Answer) (*hookv1.HookTaskStatus,
	error,
) {
	s, err := Claim(t, by, now, lasts)
	if err != nil {
		return nil, err
	}
	claimed := object.Clone(t)
	claimed.Status = s
	return Renew(claimed, by, now, lasts, Progress{
		Message: brief(a.Message, "the webhook answered that the work goes on"), Percent: a.Percent,
	})
}

// unanswered notes that a call failed. What the task is otherwise stays.
func unanswered(t *hookv1.HookTask, failure error, now time.Time) (*hookv1.HookTaskStatus, []Event, error) {
	s := statusOf(t)
	if s.GetPhase() == Completed {
		return s, nil, nil
	}
	calls := s.GetWebhook()
	if calls == nil {
		calls = &hookv1.WebhookCalls{}
		s.Webhook = calls
	}
	first := calls.GetFailures() == 0
	calls.Attempts, calls.Failures = proto.Int32(calls.GetAttempts()+1), proto.Int32(calls.GetFailures()+1)
	calls.LastTime, calls.LastError = floor(now), proto.String(brief(failure.Error(), "no answer"))
	if first {
		calls.FailingSince = floor(now)
	}
	pause := longestRetry
	if n := calls.GetFailures(); n < 10 {
		pause = min(firstRetry<<(n-1), longestRetry)
	}
	calls.NextTime = ceiling(now.Add(pause))
	s.Message = proto.String(brief(fmt.Sprintf("the webhook fails since %s (%d calls): %s",
		clock(calls.GetFailingSince().AsTime()), calls.GetFailures(), calls.GetLastError()), ""))
	if !first {
		return s, nil, nil
	}
	return s, []Event{About(t, warning, "HookWebhookFailed", calls.GetLastError())}, nil
}

// brief returns a text that fits into a message, or another one if it is empty.
func brief(text, otherwise string) string {
	const most = 1024
	if text = strings.ToValidUTF8(strings.TrimSpace(text), ""); text == "" {
		return otherwise
	}
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// WebhookFaults returns what is wrong with the webhook of an owner's settings. allowed are the addresses that an
// administrator allows: each allows the addresses with the same scheme, host and port whose path begins with its path.
func WebhookFaults(o *hookv1.HookOwnerSpec, allowed []string) []object.Fault {
	w := o.GetWebhook()
	switch {
	case w == nil:
		return nil
	case o.GetOwner() == quorumOwner:
		return []object.Fault{object.Faultf("spec.webhook", "must be absent: etcd-guardian is the owner of %s", quorumOwner)}
	}
	bad := lengthFault("spec.webhook.timeout", w.GetTimeout(), shortestCall, longestCall)
	if why := webhook.URLFault(w.GetUrl()); why != "" {
		return append(bad, object.Faultf("spec.webhook.url", "%s", why))
	}
	if webhook.Allowed(w.GetUrl(), allowed) {
		return bad
	}
	return append(bad, object.Faultf("spec.webhook.url",
		"%q is not allowed: an administrator allows addresses with --set hook-broker.webhook-allow=URL of windlass up",
		w.GetUrl()))
}
