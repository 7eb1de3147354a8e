package plan

import (
	"errors"
	"strings"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func withWebhook() OwnerFacts {
	return OwnerFacts{Settings: &hookv1.HookOwnerSpec{
		Owner: backup, Webhook: &hookv1.HookWebhook{Url: "https://backup.example.com/hooks"},
	}}
}

func TestAWebhookIsCalledWhenItsTaskIsDue(t *testing.T) {
	next := status(Pending)
	next.Webhook = &hookv1.WebhookCalls{NextTime: timestamppb.New(start.Add(time.Minute))}
	own := claimed(start.Add(time.Hour))
	own.ClaimedBy = proto.String(brokerUser)
	for name, tt := range map[string]struct {
		owner OwnerFacts
		have  *hookv1.HookTaskStatus
		after time.Duration // since the start
		calls bool
	}{
		"a new task":                         {withWebhook(), status(Pending), 0, true},
		"one without a webhook":              {OwnerFacts{}, status(Pending), 0, false},
		"before the next call is due":        {withWebhook(), next, 59 * time.Second, false},
		"when it is due":                     {withWebhook(), next, time.Minute, true},
		"while another user works on it":     {withWebhook(), claimed(start.Add(time.Hour)), 0, false},
		"while the webhook itself does":      {withWebhook(), own, 0, true},
		"one that waits for other hooks":     {withWebhook(), status(Waiting), 0, false},
		"one that failed may be tried again": {withWebhook(), status(Failed), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(afterDrain)
			task := stored(m, backupEnd, proto.Clone(tt.have).(*hookv1.HookTaskStatus))
			v := View{
				Now: start.Add(tt.after), Machine: m, Tasks: []*hookv1.HookTask{task},
				Owners: map[string]OwnerFacts{backup: tt.owner},
			}
			if tt.have.GetPhase() == Waiting {
				if _, ok := NextCall(task, tt.owner, v.Now); ok {
					t.Error("it is called")
				}
				return
			}
			p := Machine(v)
			calls := false
			for _, a := range p.Do {
				calls = calls || a.Verb == CallWebhook
			}
			if calls != tt.calls {
				t.Errorf("calls = %v, want %v: %v", calls, tt.calls, p.Do)
			}
			if at, ok := NextCall(task, tt.owner, v.Now); ok && !calls && (p.Wake.IsZero() || p.Wake.After(at)) {
				t.Errorf("wakes at %v, want %v", p.Wake, at)
			}
		})
	}
}

func TestWhatBecomesOfATaskAfterItsWebhookWasCalled(t *testing.T) {
	percent := int32(40)
	for name, tt := range map[string]struct {
		answer  Answer
		failure error
		phase   string
		message string
		next    time.Duration // zero: no further call
		event   string
	}{
		"completed": {Answer{State: Completed, Message: "saved"}, nil, Completed, "saved", 0, "HookCompleted"},
		"at work": {
			Answer{State: inProgress, Percent: &percent},
			nil, Claimed,
			"the webhook answered that the work goes on", 10 * time.Second, "HookClaimed",
		},
		"at work, asked to come back later": {
			Answer{State: inProgress, Message: "copying", RetryAfter: 60}, nil, Claimed, "copying", time.Minute, "HookClaimed",
		},
		"failed": {Answer{State: Failed, Message: "disk full"}, nil, Failed, "disk full", time.Minute, "HookFailed"},
		"no answer": {
			Answer{},
			errors.New("connection refused"), Pending,
			"the webhook fails since 2026-11-21 12:00:00 UTC (1 calls): connection refused", time.Second, "HookWebhookFailed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			task := stored(machine(afterDrain), backupEnd, status(Pending))
			s, events, err := Answered(task, withWebhook(), tt.answer, tt.failure, start)
			if err != nil {
				t.Fatal(err)
			}
			if s.GetPhase() != tt.phase || s.GetMessage() != tt.message {
				t.Errorf("%s: %q, want %s: %q", s.GetPhase(), s.GetMessage(), tt.phase, tt.message)
			}
			if got := s.GetWebhook().GetNextTime(); (got == nil) != (tt.next == 0) ||
				got != nil && !got.AsTime().Equal(start.Add(tt.next)) {
				t.Errorf("next call %v, want after %v", got.AsTime(), tt.next)
			}
			if len(events) != 1 || events[0].Reason != tt.event {
				t.Errorf("events %v, want %s", events, tt.event)
			}
			if c := s.GetClaimExpiryTime(); c != nil && !c.AsTime().After(s.GetWebhook().GetNextTime().AsTime()) {
				t.Errorf("the claim ends at %v, before the next call", c.AsTime())
			}
		})
	}
}

func TestAWebhookThatFailsIsCalledEverMoreRarely(t *testing.T) {
	task, now := stored(machine(afterDrain), backupEnd, status(Pending)), start
	var pauses []time.Duration
	told := 0
	for range 12 {
		s, events, err := Answered(task, withWebhook(), Answer{}, errors.New("no"), now)
		if err != nil {
			t.Fatal(err)
		}
		task.Status, told = s, told+len(events)
		next := s.GetWebhook().GetNextTime().AsTime()
		pauses, now = append(pauses, next.Sub(now)), next
	}
	if pauses[0] != time.Second || pauses[3] != 8*time.Second || pauses[11] != 5*time.Minute || told != 1 {
		t.Errorf("pauses %v, %d events", pauses, told)
	}
	s, _, err := Answered(task, withWebhook(), Answer{State: inProgress}, nil, now)
	if err != nil || s.GetWebhook().GetFailures() != 0 || s.GetWebhook().GetLastError() != "" ||
		s.GetWebhook().GetAttempts() != 13 {
		t.Errorf("%v, %v: want no failure, after 13 calls", s.GetWebhook(), err)
	}
}

func TestTheAddressOfAWebhookIsOneThatAnAdministratorAllowed(t *testing.T) {
	allowed := []string{"https://a.example.com/hooks"}
	for text, want := range map[string]string{
		"https://a.example.com/hooks/x": "",
		"https://a.example.com/":        "not allowed",
		"http://a.example.com/hooks":    "https://",
	} {
		o := &hookv1.HookOwnerSpec{Owner: backup, Webhook: &hookv1.HookWebhook{Url: text}}
		bad := WebhookFaults(o, allowed)
		if want == "" && len(bad) > 0 || want != "" && (len(bad) != 1 || !strings.Contains(bad[0].String(), want)) {
			t.Errorf("%s: %v, want %q", text, bad, want)
		}
	}
	o := &hookv1.HookOwnerSpec{Owner: etcd, Webhook: &hookv1.HookWebhook{Url: allowed[0]}}
	if bad := WebhookFaults(o, allowed); len(bad) != 1 || bad[0].Path != "spec.webhook" {
		t.Errorf("a webhook of %s: %v, want it refused", etcd, bad)
	}
}
