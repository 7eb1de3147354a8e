package promql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

func quiet(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func serves(text string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return []byte(text), nil }
}

// program is a target whose metrics may change.
type program struct {
	mu     sync.Mutex
	text   string
	failed error
	count  int // of reads
}

func (p *program) serve(text string) { p.set(text, nil) }
func (p *program) fail(err error)    { p.set("", err) }

func (p *program) set(text string, failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.failed = text, failed
}

func (p *program) reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *program) target(job string) Target {
	return Target{Job: job, Instance: job + ":1", Read: func(context.Context) ([]byte, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.count++
		return []byte(p.text), p.failed
	}}
}

func TestQueriesAreEvaluatedOverTheMetricsOfAllTargets(t *testing.T) {
	e := NewEngine([]Target{
		{Job: "etcd-guardian", Instance: "h:1", Read: serves("# TYPE voters gauge\nvoters 3\nleader{job=\"own\"} 1\n")},
		{Job: "scheduler", Instance: "h:2", Read: serves("pending{queue=\"a\"} 4\npending{queue=\"b\"} 0\n")},
	}, quiet(t))
	for query, want := range map[string]string{
		`max(voters) > bool 2`: "true",
		`max(voters) > bool 3`: "false",
		`count(up) == bool 2`:  "true",
		`group(leader{exported_job="own",job="etcd-guardian"})`: "true",
		`sum(pending) == bool 4`:                                "true",
		`absent(gone)`:                                          "true",
		`0 * group(voters)`:                                     "false",
		`pending > bool 1`:                                      "the query must return one sample, but returns 2",
		`gone`:                                                  "the query must return one sample, but returns 0",
		`max(voters)`:                                           "the query must return 0 or 1, but returns 3",
		`scalar(max(voters))`:                                   "the query returns a scalar, not a vector",
		`"a"`:                                                   "the query returns a string, not a vector",
		`voters[5m]`:                                            "the samples reach back 0s of the 5m0s",
		`max(`:                                                  "the query is not valid",
		`count_over_time(vector(1)[3h:1s]) > bool 1`: "the samples reach back",
	} {
		applies, err := e.Evaluate(t.Context(), query)
		got := fmt.Sprint(applies)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

func TestAQueryIsNotEvaluatedWithoutTheMetricsOfATarget(t *testing.T) {
	up, down := &program{text: "x 1"}, &program{failed: errors.New("connection refused")}
	e := NewEngine([]Target{up.target("a"), down.target("b")}, quiet(t))
	const query = `max(x) or vector(0)`
	if _, err := e.Evaluate(t.Context(), query); err == nil ||
		err.Error() != "metrics could not be read of b: connection refused" {
		t.Errorf("error = %v", err)
	}
	down.serve("x{") // no metrics
	if _, err := e.Evaluate(t.Context(), query); err == nil ||
		!strings.Contains(err.Error(), "metrics could not be read of b: ") {
		t.Errorf("error = %v", err)
	}
	down.serve("y 1")
	if applies, err := e.Evaluate(t.Context(), query); err != nil || !applies {
		t.Errorf("applies = %t, error = %v", applies, err)
	}
}

func TestAQueryThatLooksBackWaitsForItsSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{text: "lag 0"}
		e := NewEngine([]Target{p.target("a")}, quiet(t))
		go e.Run(t.Context()) //nolint:errcheck // it returns none
		const query = `max_over_time(lag[10m]) > bool 5`
		_, err := e.Evaluate(t.Context(), query)
		want := "the samples reach back 0s of the 10m0s that the query reads; they will at 2000-01-01T00:10:00Z"
		if err == nil || err.Error() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
		time.Sleep(4 * time.Minute)
		p.serve("lag 9") // for a minute
		time.Sleep(time.Minute)
		p.serve("lag 0")
		time.Sleep(6 * time.Minute)
		if applies, err := e.Evaluate(t.Context(), query); err != nil || !applies {
			t.Errorf("applies = %t, error = %v; want that it applies", applies, err)
		}
		time.Sleep(10 * time.Minute)
		if applies, err := e.Evaluate(t.Context(), query); err != nil || applies {
			t.Errorf("after %d reads: applies = %t, error = %v; want that it does not apply", p.reads(), applies, err)
		}
		if most := int((10*time.Minute+staleAfter+2*scrapeEvery)/scrapeEvery) + 2; e.samples.count > most {
			t.Errorf("%d samples are kept, more than %d", e.samples.count, most)
		}
	})
}

// step lets an engine's clock go otherwise than time does.
func step(e *Engine, by *atomic.Int64) {
	clock := e.clock
	e.clock = func() instant {
		now := clock()
		now.Time = now.Add(time.Duration(by.Load()))
		return now
	}
}

func TestSamplesFromBeforeTheClockWasSetDoNotCount(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -10 * time.Minute, "forward": 20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &program{text: "lag 9"}
				var off atomic.Int64
				e := NewEngine([]Target{p.target("a")}, quiet(t))
				step(e, &off)
				go e.Run(t.Context()) //nolint:errcheck // it returns none
				const query = `max_over_time(lag[10m]) > bool 5`
				_, _ = e.Evaluate(t.Context(), query)
				time.Sleep(11 * time.Minute)
				if applies, err := e.Evaluate(t.Context(), query); err != nil || !applies {
					t.Fatalf("applies = %t, error = %v", applies, err)
				}
				p.serve("lag 0")
				off.Store(int64(by))
				time.Sleep(time.Minute)
				if applies, err := e.Evaluate(t.Context(), query); err == nil || !strings.Contains(err.Error(), "reach back") {
					t.Errorf("a minute after the clock was set: applies = %t, error = %v", applies, err)
				}
				if applies, err := e.Evaluate(t.Context(), `group(lag == 0) or vector(0)`); err != nil || !applies {
					t.Errorf("the latest sample: applies = %t, error = %v", applies, err)
				}
			})
		})
	}
}

func TestAGapIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{text: "lag 9"}
		e := NewEngine([]Target{p.target("a")}, quiet(t))
		go e.Run(t.Context()) //nolint:errcheck // it returns none
		const query = `max_over_time(lag[10m]) > bool 5`
		_, _ = e.Evaluate(t.Context(), query)
		time.Sleep(11 * time.Minute)
		p.fail(errors.New("down"))
		time.Sleep(10 * time.Minute)
		p.serve("lag 0")
		for range 2 {
			if applies, err := e.Evaluate(t.Context(), query); err == nil || !strings.Contains(err.Error(), "reach back") {
				t.Errorf("after the gap: applies = %t, error = %v", applies, err)
			}
			time.Sleep(9 * time.Minute)
		}
		time.Sleep(2 * time.Minute)
		if applies, err := e.Evaluate(t.Context(), query); err != nil || applies {
			t.Errorf("10 minutes after the gap: applies = %t, error = %v", applies, err)
		}
	})
}

func TestAnEvaluationThatIsCancelledSaysNothingOfTheTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine([]Target{{Job: "a", Read: func(ctx context.Context) ([]byte, error) {
			return []byte("x 1"), ctx.Err()
		}}}, quiet(t))
		go e.Run(t.Context()) //nolint:errcheck // it returns none
		const query = `min_over_time(up[1m]) == bool 0`
		_, _ = e.Evaluate(t.Context(), query)
		time.Sleep(40 * time.Second)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.Evaluate(gone, `max(x)`); !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v", err)
		}
		time.Sleep(40 * time.Second)
		if applies, err := e.Evaluate(t.Context(), query); err != nil || applies {
			t.Errorf("applies = %t, error = %v; want that the target was never down", applies, err)
		}
	})
}

func TestAQueryThatReadsTooMuchLeavesRoomForOthers(t *testing.T) {
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "m{n=\"%d\"} 1\n", i)
	}
	e := NewEngine([]Target{{Job: "a", Read: serves(many.String())}}, quiet(t))
	_, err := e.Evaluate(t.Context(), `max(max_over_time(m[2h]))`)
	if err == nil || err.Error() != "the query reads 723000 samples: a query may read 250000, and all together 750000" {
		t.Errorf("error = %v", err)
	}
	if applies, err := e.Evaluate(t.Context(), `max(m)`); err != nil || !applies {
		t.Errorf("applies = %t, error = %v", applies, err)
	}
	if len(e.watched) != 1 {
		t.Errorf("%d queries are watched", len(e.watched))
	}
}

func TestAllQueriesTogetherHaveRoom(t *testing.T) {
	var many strings.Builder
	for i := range 86 {
		fmt.Fprintf(&many, "m{n=\"%d\"} 1\n", i)
	}
	e := NewEngine([]Target{{Job: "a", Read: serves(many.String())}}, quiet(t))
	for i, want := range []string{"reach back", "reach back", "reach back", "may read 250000, and all together 750000"} {
		_, err := e.Evaluate(t.Context(), fmt.Sprintf(`max(max_over_time(m[%dm])) > bool %d`, 23*60-i, i))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("query %d: error = %v, want %q", i, err, want)
		}
	}
	pattern := strings.Repeat("a?", 450)
	var err error
	for i := range 40 {
		_, err = e.Evaluate(t.Context(), fmt.Sprintf(`max({n=~"%s",x="%d"})`, pattern[:500], i))
	}
	if err == nil || !strings.Contains(err.Error(), "patterns of more than 10000 instructions") {
		t.Errorf("patterns: error = %v", err)
	}
}

func TestLabelsOfTargetsDoNotHideEachOther(t *testing.T) {
	e := NewEngine([]Target{
		{Job: "a", Read: serves("x{job=\"q\",exported_job=\"b\"} 1\nx{job=\"q\",exported_job=\"c\"} 0\n")},
	},
		quiet(t))
	const both = `count(x{exported_exported_job="q"}) == bool 2`
	if applies, err := e.Evaluate(t.Context(), both); err != nil || !applies {
		t.Errorf("applies = %t, error = %v", applies, err)
	}
	e = NewEngine([]Target{{Job: "a", Read: serves("x 1\nx 0\n")}}, quiet(t))
	if _, err := e.Evaluate(t.Context(), `max(x)`); err == nil || !strings.Contains(err.Error(), "two samples of") {
		t.Errorf("error = %v", err)
	}
}

func TestWhatNoQueryReadsIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{text: "x 1\ny 1\nz 1\n"}
		e := NewEngine([]Target{p.target("a")}, quiet(t))
		go e.Run(t.Context()) //nolint:errcheck // it returns none
		if _, err := e.Evaluate(t.Context(), "max(x)"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if p.reads() != 1 || len(e.samples.series) != 1 {
			t.Errorf("a query that does not look back: %d reads, %d series; want 1 and 1", p.reads(), len(e.samples.series))
		}
		if _, err := e.Evaluate(t.Context(), "max_over_time(z[1m])"); err == nil {
			t.Fatal("no sample is a minute old yet")
		}
		time.Sleep(forgetAfter + time.Hour)
		if most := 3 + int(forgetAfter/scrapeEvery); p.reads() > most {
			t.Errorf("%d reads, more than %d: those of forgotten queries go on", p.reads(), most)
		}
		if _, err := e.Evaluate(t.Context(), "max(y)"); err != nil {
			t.Fatal(err)
		}
		if len(e.samples.series) != 1 || e.samples.count != 1 {
			t.Errorf("%d series with %d samples, want those of y only", len(e.samples.series), e.samples.count)
		}
	})
}

func TestASeriesThatIsGoneHasNoValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{text: "x 1"}
		e := NewEngine([]Target{p.target("a")}, quiet(t))
		if _, err := e.Evaluate(t.Context(), "group(x) or vector(0)"); err != nil {
			t.Fatal(err)
		}
		p.serve("")
		time.Sleep(scrapeEvery)
		if applies, err := e.Evaluate(t.Context(), "group(x) or vector(0)"); err != nil || applies {
			t.Errorf("applies = %t, error = %v; want that it does not apply", applies, err)
		}
	})
}

func TestSamplesAreBounded(t *testing.T) {
	s := &samples{series: map[string]*series{}, count: maxSamples}
	err := s.add(t.Context(), "a", labels.EmptyLabels(), []byte("x 1\n"), time.Now(), func(labels.Labels) bool {
		return true
	})
	if err == nil || !strings.Contains(err.Error(), "more than 1000000 samples") {
		t.Errorf("error = %v", err)
	}
}
