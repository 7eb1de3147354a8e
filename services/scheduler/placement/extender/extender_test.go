package extender

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// serve returns an extender on loopback, and an asker that may reach it.
func serve(t *testing.T, h http.Handler) (*Asker, plan.Question) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	a := &Asker{Allowed: []string{server.URL}, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	a.reach = func(netip.Addr) error { return nil }
	return a, plan.Question{
		Extender: &plan.Extender{
			URL: server.URL, Filter: "v1/filter", Prioritize: "prioritize", Timeout: time.Minute, NamesOnly: true,
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		},
		Verb: plan.FilterNodes,
		Pod: &schedulingv1.Pod{
			ApiVersion: "v1", Kind: "Pod", Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "p"},
		},
		Nodes: []*nodev1.Node{
			{Kind: "Node", Metadata: &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}}},
			{Kind: "Node", Metadata: &metav1.ObjectMeta{Name: "b"}},
		},
	}
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// sameJSON reports whether two documents are the same.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatal(err)
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return string(p) == string(q)
}

func TestAnExtenderIsSentThePodAndTheNodes(t *testing.T) {
	const pod = `"pod":{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"p"}}`
	for want, change := range map[string]func(*plan.Question){
		`/v1/filter {` + pod + `,"nodenames":["a","b"]}`:  func(*plan.Question) {},
		`/prioritize {` + pod + `,"nodenames":["a","b"]}`: func(q *plan.Question) { q.Verb = plan.RankNodes },
		`/v1/filter {` + pod + `,"nodes":{"apiVersion":"v1","kind":"NodeList","metadata":{},"items":[
			{"kind":"Node","metadata":{"name":"a","labels":{"x":"y"}}},{"kind":"Node","metadata":{"name":"b"}}]}}`: func(q *plan.Question) {
			q.NamesOnly = false
		},
	} {
		path, body, _ := strings.Cut(want, " ")
		called := false
		a, q := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			called = true
			raw, _ := io.ReadAll(r.Body)
			if r.URL.Path != path || !sameJSON(t, string(raw), body) {
				t.Errorf("%s got %s, want %s", r.URL.Path, raw, want)
			}
			if r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) > 0 || r.Method != http.MethodPost {
				t.Errorf("%s with %v", r.Method, r.Header)
			}
		}))
		change(&q)
		if a.Ask(t.Context(), q); !called {
			t.Error("it was not called")
		}
	}
}

func TestAnswersAreReadInAllSpellings(t *testing.T) {
	for answer, tt := range map[string]struct {
		verb  string
		whole bool // nodes, not names
		want  string
	}{
		`{"nodenames":["b"],"failedNodes":{"a":"old"}}`:                    {plan.FilterNodes, false, "[b] map[a:old] []"},
		`{"NodeNames":["b"],"FailedAndUnresolvableNodes":{"a":"old"}}`:     {plan.FilterNodes, false, "[b] map[a:old] []"},
		`{"nodes":{"items":[{"metadata":{"name":"b"},"spec":{"x":[1]}}]}}`: {plan.FilterNodes, true, "[b] map[] []"},
		`{"Nodes":{"Items":[{"metadata":{"name":"b"}}]}}`:                  {plan.FilterNodes, false, "[b] map[] []"},
		`{}`: {plan.FilterNodes, false, "[] map[] []"},
		`[{"host":"a","score":3},{"Host":"b","Score":10}]`: {plan.RankNodes, false, "[] map[] [{a 3} {b 10}]"},
		`[]`: {plan.RankNodes, false, "[] map[] []"},
	} {
		a, q := serve(t, text(answer))
		q.Verb, q.NamesOnly = tt.verb, !tt.whole
		got := a.Ask(t.Context(), q)
		if s := fmt.Sprint(got.Nodes, got.Failed, got.Scores); got.Err != "" || s != tt.want {
			t.Errorf("%s: %s, %q; want %s", answer, s, got.Err, tt.want)
		}
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		verb   string
		want   string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/filter" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, plan.FilterNodes, "302"},
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			plan.FilterNodes, "500",
		},
		"an error of its own":        {text(`{"error":"no such model"}`), plan.FilterNodes, "no such model"},
		"no JSON":                    {text("<html>"), plan.FilterNodes, "invalid character"},
		"nothing":                    {text(""), plan.FilterNodes, "unexpected end"},
		"null":                       {text("null"), plan.FilterNodes, "must be an object"},
		"a list for a filter":        {text("[]"), plan.FilterNodes, "cannot unmarshal array"},
		"an object for a ranking":    {text("{}"), plan.RankNodes, "must be a list"},
		"null for a ranking":         {text("null"), plan.RankNodes, "must be a list"},
		"a ranking without a score":  {text(`[{"host":"a"}]`), plan.RankNodes, `"a" has no score`},
		"a score that is no number":  {text(`[{"host":"a","score":NaN}]`), plan.RankNodes, "invalid character"},
		"a score beyond all numbers": {text(`[{"host":"a","score":1e999}]`), plan.RankNodes, "1e999"},
		"too long":                   {text(strings.Repeat(" ", leastAnswer+1)), plan.FilterNodes, "longer than"},
		"a connection that breaks": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, plan.FilterNodes, "EOF",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, q := serve(t, tt.answer)
			q.Verb = tt.verb
			if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, tt.want) || len(got.Nodes)+len(got.Scores) > 0 {
				t.Errorf("%q, want %q", got.Err, tt.want)
			}
		})
	}
}

func TestAnExtenderThatHangsIsGivenUpAfterItsTimeOutAndThenCalledRarely(t *testing.T) {
	var calls atomic.Int32
	a, q := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection would not be noticed
		<-r.Context().Done()
	}))
	now := time.Now()
	a.Now = func() time.Time { return now } // no further try becomes due
	q.Timeout = 500 * time.Millisecond
	for range 3 {
		if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, "did not answer within 500ms") {
			t.Errorf("error %q", got.Err)
		}
	}
	var errs [2]string
	for i := range errs {
		errs[i] = a.Ask(t.Context(), q).Err
	}
	if n := calls.Load(); n > 3 || !strings.Contains(errs[0], "not called") || errs[0] != errs[1] {
		t.Errorf("%d calls, errors %q", n, errs)
	}
}

func TestACallerThatGoesAwaySaysNothingAboutTheExtender(t *testing.T) {
	a, q := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("User-Agent") == "windlass-scheduler" {
			_, _ = io.WriteString(w, `{"nodenames":[]}`)
		}
	}))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		a.Ask(gone, q)
	}
	if got := a.Ask(t.Context(), q); got.Err != "" {
		t.Errorf("after callers that went away: %q", got.Err)
	}
}

func TestOnlyAllowedExtendersAreCalled(t *testing.T) {
	a, q := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	a.Allowed = []string{q.URL + "/v2"}
	if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, "is not allowed: see --webhook-allow of scheduler") {
		t.Errorf("error %q", got.Err)
	}
	a.Allowed = []string{q.URL}
	a.reach = nil
	if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, "loopback") {
		t.Errorf("error %q", got.Err)
	}
}

func TestAnExtenderWithAnotherCertificateIsNotAsked(t *testing.T) {
	a, q := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	e := *q.Extender
	q.Extender = &e
	e.ServerName = "another.example.org"
	if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, "another.example.org") {
		t.Errorf("error %q", got.Err)
	}
	e.ServerName, e.CAData = "", nil
	if got := a.Ask(t.Context(), q); !strings.Contains(got.Err, "certificate") {
		t.Errorf("error %q", got.Err)
	}
}
