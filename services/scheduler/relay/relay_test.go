package relay

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// ask hands a request to the agent of a node that attends.
func ask(t *testing.T, r *Relay, node string) (*Attendance, *Request, string) {
	t.Helper()
	a, leave := r.Attend(node)
	t.Cleanup(leave)
	w, err := r.Ask(t.Context(), node, &schedulingv1.AttendResponse{})
	if err != nil {
		t.Fatal(err)
	}
	return a, w, (<-a.Requests).GetId()
}

func TestWhatTheAgentSaysComesInOrderAndThenItsEnd(t *testing.T) {
	for _, c := range []struct{ end, want error }{{nil, io.EOF}, {errors.New("connection lost"), ErrBrokeOff}} {
		r := New()
		_, w, id := ask(t, r, "a")
		answer, err := r.Take("a", id)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for _, s := range []string{"one", "two"} {
				_ = answer.Say(&schedulingv1.DeliverRequest{Stdout: []byte(s)})
			}
			answer.End(c.end)
		}()
		for _, want := range []string{"one", "two"} {
			if m, err := w.Next(); err != nil || string(m.GetStdout()) != want {
				t.Errorf("Next = %v, %v; want %s", m, err, want)
			}
		}
		if m, err := w.Next(); !errors.Is(err, c.want) {
			t.Errorf("Next after the last = %v, %v; want %v", m, err, c.want)
		}
		if err := w.Send(&schedulingv1.DeliverResponse{}); err != nil {
			t.Errorf("Send to an agent that has said everything = %v", err)
		}
		w.Close()
		if len(r.requests) > 0 {
			t.Errorf("the relay still knows %v", r.requests)
		}
	}
}

func TestARequestIsAnsweredOnceByTheNodeThatWasAsked(t *testing.T) {
	r := New()
	_, w, id := ask(t, r, "a")
	if _, err := r.Take("b", id); !errors.Is(err, errUnknown) {
		t.Errorf("Take by another node = %v", err)
	}
	if _, err := r.Take("a", id); err != nil {
		t.Errorf("Take = %v", err)
	}
	if _, err := r.Take("a", id); !errors.Is(err, errUnknown) {
		t.Errorf("Take once more = %v", err)
	}
	w.Close()
	if _, err := r.Take("a", id); !errors.Is(err, errUnknown) {
		t.Errorf("Take after Close = %v", err)
	}
}

func TestWhoGoesIsNotWaitedFor(t *testing.T) {
	r := New()
	_, w, id := ask(t, r, "a")
	answer, err := r.Take("a", id)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-answer.Done()
	if err := answer.Say(&schedulingv1.DeliverRequest{}); !errors.Is(err, errUnknown) {
		t.Errorf("Say = %v", err)
	}
	if err := w.Send(&schedulingv1.DeliverResponse{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Send = %v", err)
	}
}

func TestAnAgentThatIsNotThereOrDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		if _, err := r.Ask(t.Context(), "a", &schedulingv1.AttendResponse{}); !errors.Is(err, ErrNobodyAttends) {
			t.Errorf("Ask without an agent = %v", err)
		}
		old, leaveOld := r.Attend("a")
		_, leave := r.Attend("a")
		<-old.Replaced
		leaveOld() // the later stream stays
		begin := time.Now()
		for i := range waiting {
			w, err := r.Ask(t.Context(), "a", &schedulingv1.AttendResponse{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if i > 0 {
				continue
			}
			if _, err := w.Next(); !errors.Is(err, ErrNoAnswer) || time.Since(begin) != patience {
				t.Errorf("Next = %v after %v", err, time.Since(begin))
			}
		}
		if _, err := r.Ask(t.Context(), "a", &schedulingv1.AttendResponse{}); !errors.Is(err, ErrTooMany) {
			t.Errorf("Ask of one that answers nothing = %v", err)
		}
		leave()
		if _, err := r.Ask(t.Context(), "a", &schedulingv1.AttendResponse{}); !errors.Is(err, ErrNobodyAttends) {
			t.Errorf("Ask of one that left = %v", err)
		}
	})
}
