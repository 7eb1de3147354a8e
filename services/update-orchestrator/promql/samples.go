package promql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const (
	// maxSamples is how many samples are kept, of 16 bytes, and how many a query may read.
	maxSamples = 1_000_000
	maxSeries  = 50_000 // of which samples are kept
)

// samples are those of the series that the queries read. They are safe for concurrent use.
type samples struct {
	lock   sync.Mutex
	series map[string]*series // by their labels
	count  int                // of samples
}

type series struct {
	labels  labels.Labels
	target  string
	samples points
}

// points are samples, oldest first.
type points []point

type point struct {
	at    int64 // in milliseconds since 1970
	value float64
}

// add takes what a target answered at a time, of which only what is wanted is kept. Series that the target had before
// and has no more end there, as in Prometheus.
func (s *samples) add(ctx context.Context, target string, common labels.Labels, answer []byte, at time.Time,
	wanted func(labels.Labels) bool,
) error {
	found, err := parse(ctx, answer, common, wanted)
	if err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.count+len(found) > maxSamples {
		return fmt.Errorf("the queries read more than %d samples", maxSamples)
	}
	if len(s.series)+len(found) > maxSeries {
		return fmt.Errorf("the queries read more than %d series", maxSeries)
	}
	now := at.UnixMilli()
	for key, f := range found {
		known := s.series[key]
		if known == nil {
			known = &series{labels: f.labels, target: target}
			s.series[key] = known
		}
		s.append(known, point{now, f.samples[0].value})
	}
	for key, known := range s.series {
		if _, there := found[key]; !there && known.target == target {
			s.append(known, point{now, math.Float64frombits(value.StaleNaN)})
		}
	}
	return nil
}

// append adds a sample behind the others: what comes late is left out, as of a clock that was set back.
func (s *samples) append(to *series, p point) {
	if n := len(to.samples); n > 0 && (to.samples[n-1].at >= p.at ||
		value.IsStaleNaN(p.value) && value.IsStaleNaN(to.samples[n-1].value)) {
		return
	}
	to.samples = append(to.samples, p)
	s.count++
}

// trim removes the samples from before a time, and series that no query reads.
func (s *samples) trim(before time.Time, wanted func(labels.Labels) bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for key, known := range s.series {
		all := len(known.samples)
		old := known.samples.before(before.UnixMilli())
		if !wanted(known.labels) {
			old = all
		}
		if old > 0 {
			known.samples = slices.Clone(known.samples[old:])
			s.count -= old
		}
		if len(known.samples) == 0 {
			delete(s.series, key)
		}
	}
}

// reset forgets all samples.
func (s *samples) reset() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.series, s.count = map[string]*series{}, 0
}

// read returns how many series a query reads.
func (s *samples) read(q *query) (n int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, known := range s.series {
		if q.reads(known.labels) {
			n++
		}
	}
	return n
}

// parse reads the text format of Prometheus, and returns the series with one sample each.
func parse(ctx context.Context, answer []byte, common labels.Labels, wanted func(labels.Labels) bool) (
	map[string]*series, error,
) {
	p, err := textparse.New(answer, "text/plain", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]*series{}
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case entry != textparse.EntrySeries:
			continue
		}
		if ctx.Err() != nil { // each line may take a search for each query
			return nil, ctx.Err()
		}
		var l labels.Labels
		p.Labels(&l)
		b := labels.NewBuilder(l)
		common.Range(func(c labels.Label) {
			if own := l.Get(c.Name); own != "" { // as Prometheus names what a target says of itself
				name := "exported_" + c.Name
				for b.Get(name) != "" {
					name = "exported_" + name
				}
				b.Set(name, own)
			}
			b.Set(c.Name, c.Value)
		})
		if l = b.Labels(); !wanted(l) {
			continue
		}
		key := string(l.Bytes(nil))
		if out[key] != nil {
			return nil, fmt.Errorf("two samples of %s", l)
		}
		_, _, v := p.Series()
		out[key] = &series{labels: l, samples: points{{value: v}}}
	}
}

// Querier returns what is there now. It implements storage.Queryable.
func (s *samples) Querier(from, until int64) (storage.Querier, error) {
	return &querier{s, from, until}, nil
}

type querier struct {
	*samples
	from, until int64
}

// Select returns the series that a selector matches. Their samples are not copied: those that are there stay as they
// are.
func (q *querier) Select(_ context.Context, _ bool, hints *storage.SelectHints, selector ...*labels.Matcher,
) storage.SeriesSet {
	q.lock.Lock()
	defer q.lock.Unlock()
	from, until := q.from, q.until
	if hints != nil { // of this selector, where a query has several
		from, until = max(from, hints.Start), min(until, hints.End)
	}
	out := &found{at: -1}
	for _, s := range q.series {
		if !matches(selector, s.labels) {
			continue
		}
		within := s.samples[s.samples.before(from):max(s.samples.before(from), s.samples.before(until+1))]
		if len(within) > 0 {
			out.series = append(out.series, &storage.SeriesEntry{
				Lset: s.labels, SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
					return storage.NewListSeriesIterator(within)
				},
			})
		}
	}
	slices.SortFunc(out.series, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return out
}

// LabelValues is for the lists of user interfaces: no query needs it.
func (q *querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string,
	annotations.Annotations, error,
) {
	return nil, nil, errors.ErrUnsupported
}

// LabelNames is as LabelValues.
func (q *querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string,
	annotations.Annotations, error,
) {
	return nil, nil, errors.ErrUnsupported
}

func (q *querier) Close() error { return nil }

// found is a storage.SeriesSet.
type found struct {
	series []storage.Series
	at     int
}

func (f *found) Next() bool {
	f.at++
	return f.at < len(f.series)
}
func (f *found) At() storage.Series                { return f.series[f.at] }
func (f *found) Err() error                        { return nil }
func (f *found) Warnings() annotations.Annotations { return nil }

// before returns how many samples are from before a time.
func (p points) before(at int64) int {
	n, _ := slices.BinarySearchFunc(p, at, func(p point, t int64) int { return cmp.Compare(p.at, t) })
	return n
}

// Get and Len implement storage.Samples.
func (p points) Get(i int) chunks.Sample { return p[i] }
func (p points) Len() int                { return len(p) }

// The methods of point implement chunks.Sample.
func (p point) T() int64                      { return p.at }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.value }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }
