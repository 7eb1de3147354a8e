package monitoring

import (
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// interval is that of the samples and of the evaluation.
const interval = time.Minute

// The series of a case have a sample each minute, in the notation of promtool: a+bxN is a value and N that follow, _ is
// a sample that is missing. The first sample is at 0 s since 1970.
func TestAlertsFire(t *testing.T) {
	for _, tt := range []struct {
		name, alert string
		series      []string
		at          time.Duration
		firing      []string // the labels of each firing alert
	}{
		{
			"two of three voters are lost", "EtcdQuorumLost",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="healthy"} 3x4 1x10`,
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="majority"} 2x15`,
			},
			6 * time.Minute,
			[]string{`{job="etcd-guardian"}`},
		},
		{
			"a majority is lost for less than a minute", "EtcdQuorumLost",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="healthy"} 3x4 1 3x10`,
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="majority"} 2x15`,
			},
			6 * time.Minute, nil,
		},
		{
			"one of three voters is lost: a majority is left", "EtcdQuorumLost",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="healthy"} 2x15`,
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="majority"} 2x15`,
			},
			10 * time.Minute, nil,
		},
		{
			"a guardian that is cut off from etcd sees no voter, and the other one sees all", "EtcdQuorumLost",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="healthy"} 0x15`,
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="majority"} 2x15`,
				`windlass_etcd_voters{job="etcd-guardian",instance="b",state="healthy"} 3x15`,
				`windlass_etcd_voters{job="etcd-guardian",instance="b",state="majority"} 2x15`,
			},
			10 * time.Minute, nil,
		},
		{
			"one of three voters is lost for longer than a replacement takes", "EtcdQuorumDegraded",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="healthy"} 2x20`,
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="desired"} 3x20`,
			},
			15 * time.Minute,
			[]string{`{job="etcd-guardian"}`},
		},
		{
			"no process of one of two services leads", "WindlassServiceWithoutLeader",
			[]string{
				`windlass_leader{job="scheduler",instance="a"} 1x2 0x10`,
				`windlass_leader{job="scheduler",instance="b"} 0x12`,
				`windlass_leader{job="machine-api",instance="a"} 0x12`,
				`windlass_leader{job="machine-api",instance="b"} 1x12`,
			},
			5 * time.Minute,
			[]string{`{job="scheduler"}`},
		},
		{
			"another process leads within two minutes", "WindlassServiceWithoutLeader",
			[]string{
				`windlass_leader{job="scheduler",instance="a"} 1x2 0x10`,
				`windlass_leader{job="scheduler",instance="b"} 0x4 1x8`,
			},
			12 * time.Minute, nil,
		},
		{
			"a certificate of a day with 95 % of its time passed", "WindlassCertificateNotRenewed",
			[]string{
				`windlass_certificate_not_before_timestamp_seconds{job="gateway",instance="a"} -82080x30`,
				`windlass_certificate_not_after_timestamp_seconds{job="gateway",instance="a"} 4320x30`,
				`windlass_certificate_not_before_timestamp_seconds{job="scheduler",instance="a"} -43200x30`,
				`windlass_certificate_not_after_timestamp_seconds{job="scheduler",instance="a"} 43200x30`,
			},
			11 * time.Minute,
			[]string{`{instance="a", job="gateway"}`},
		},
		{
			"a node that is lost, though the leader of its service changes in between", "NodeNotReady",
			[]string{
				`windlass_node_ready{job="eviction-controller",instance="a",node="n1"} 1x2 0x5 _x20`,
				`windlass_node_ready{job="eviction-controller",instance="b",node="n1"} _x8 0x20`,
				`windlass_node_ready{job="eviction-controller",instance="a",node="n2"} 1x40`,
			},
			13 * time.Minute,
			[]string{`{job="eviction-controller", node="n1"}`},
		},
		{
			"a node that restarts", "NodeNotReady",
			[]string{`windlass_node_ready{job="eviction-controller",instance="a",node="n1"} 1x2 0x5 1x20`},
			13 * time.Minute, nil,
		},
		{
			"a machine that passes through its first phases and does not run", "MachineNotRunning",
			[]string{
				`windlass_machine_phase{job="machine-api",instance="a",namespace="w",machine="m",phase="Pending"} 1 _x40`,
				`windlass_machine_phase{job="machine-api",instance="a",namespace="w",machine="m",phase="Provisioning"} _ 1x20 _x40`,
				`windlass_machine_phase{job="machine-api",instance="a",namespace="w",machine="m",phase="Provisioned"} _x21 1x40`,
				`windlass_machine_phase{job="machine-api",instance="a",namespace="w",machine="ok",phase="Running"} 1x60`,
			},
			31 * time.Minute,
			[]string{`{job="machine-api", machine="m", namespace="w"}`},
		},
		{
			"the audit log cannot be written", "WindlassAuditLogFailed",
			[]string{
				`windlass_audit_failed{job="machine-api",instance="a",log="audit.log"} 0x2 1x10`,
				`windlass_audit_failed{job="machine-api",instance="a",log="reads.log"} 0x12`,
			},
			4 * time.Minute,
			[]string{`{job="machine-api", log="audit.log"}`},
		},
		{
			"a snapshot is an hour late", "EtcdSnapshotOverdue",
			[]string{
				`windlass_snapshot_schedule_due_timestamp_seconds{job="etcd-guardian",instance="a",schedule="nightly"} 60x90`,
				`windlass_snapshot_schedule_due_timestamp_seconds{job="etcd-guardian",instance="a",schedule="weekly"} 604800x90`,
			},
			67 * time.Minute,
			[]string{`{job="etcd-guardian", schedule="nightly"}`},
		},
		{
			"a snapshot failed now, another one long ago", "EtcdSnapshotFailed",
			[]string{
				`windlass_snapshot_phase{job="etcd-guardian",instance="a",snapshot="old",schedule="s",phase="Failed"} 1x200`,
				`windlass_snapshot_phase{job="etcd-guardian",instance="a",snapshot="new",schedule="s",phase="Failed"} _x99 1x100`,
			},
			105 * time.Minute,
			[]string{`{job="etcd-guardian", phase="Failed", schedule="s", snapshot="new"}`},
		},
		{
			"no schedule takes snapshots", "EtcdSnapshotScheduleMissing",
			[]string{`windlass_etcd_voters{job="etcd-guardian",instance="a",state="present"} 3x90`},
			61 * time.Minute,
			[]string{`{job="etcd-guardian"}`},
		},
		{
			"a schedule takes snapshots", "EtcdSnapshotScheduleMissing",
			[]string{
				`windlass_etcd_voters{job="etcd-guardian",instance="a",state="present"} 3x90`,
				`windlass_snapshot_schedule_due_timestamp_seconds{job="etcd-guardian",instance="a",schedule="s"} 9999x90`,
			},
			80 * time.Minute, nil,
		},
		{
			"of two paused pools one has nodes that wait", "PoolPaused",
			[]string{
				`windlass_pool_paused{job="node-configurator",instance="a",pool="worker"} 1x1500`,
				`windlass_pool_machines{job="node-configurator",instance="a",pool="worker",state="updated"} 2x1500`,
				`windlass_pool_machines{job="node-configurator",instance="a",pool="worker",state="total"} 3x1500`,
				`windlass_pool_paused{job="node-configurator",instance="a",pool="infra"} 1x1500`,
				`windlass_pool_machines{job="node-configurator",instance="a",pool="infra",state="updated"} 3x1500`,
				`windlass_pool_machines{job="node-configurator",instance="a",pool="infra",state="total"} 3x1500`,
			},
			1450 * time.Minute,
			[]string{`{job="node-configurator", pool="worker"}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := firing(t, load(t, tt.series), alert(t, tt.alert), tt.at)
			if !slices.Equal(got, tt.firing) {
				t.Errorf("%s fires for %v, want %v", tt.alert, got, tt.firing)
			}
		})
	}
}

// firing returns the labels of the alerts that a rule fires at a time, sorted. An alert fires once its expression has
// had a result with the same labels, the name left out, for as long as the rule demands.
func firing(t *testing.T, data memory, rule rulefmt.Rule, at time.Duration) []string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		Parser: syntax,
	})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	since := map[string]time.Duration{}
	for now := time.Duration(0); now <= at; now += interval {
		results := evaluate(t, engine, data, rule.Expr, time.Unix(0, 0).Add(now))
		for key := range since {
			if !slices.Contains(results, key) {
				delete(since, key)
			}
		}
		for _, key := range results {
			if _, ok := since[key]; !ok {
				since[key] = now
			}
		}
	}
	var out []string
	for key, began := range since {
		if at-began >= time.Duration(rule.For) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

func evaluate(t *testing.T, engine *promql.Engine, data memory, expr string, at time.Time) []string {
	t.Helper()
	query, err := engine.NewInstantQuery(t.Context(), data, nil, expr, at)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%s at %v: %v", expr, at.UTC(), err)
	}
	var out []string
	for _, s := range vector {
		out = append(out, labels.NewBuilder(s.Metric).Del(model.MetricNameLabel).Labels().String())
	}
	return out
}

// memory is a storage.Queryable of series that do not change. Prometheus' own storage for tests would need the modules
// of its database and of its service discovery.
type memory []*storage.SeriesEntry

// load returns the series of descriptions. A series that ends is stale from its first missing sample on, as after a
// scrape without it.
func load(t *testing.T, descriptions []string) memory {
	t.Helper()
	var out memory
	for _, text := range descriptions {
		name, values, err := syntax.ParseSeriesDesc(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			at := (time.Duration(i) * interval).Milliseconds()
			switch {
			case !v.Omitted:
				samples = append(samples, sample{at, v.Value})
			case len(samples) > 0 && !value.IsStaleNaN(samples[len(samples)-1].F()):
				samples = append(samples, sample{at, math.Float64frombits(value.StaleNaN)})
			}
		}
		out = append(out, storage.NewListSeries(name, samples))
	}
	return out
}

func (m memory) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			found := &selection{at: -1}
			for _, s := range m {
				if !slices.ContainsFunc(matchers, func(by *labels.Matcher) bool { return !by.Matches(s.Lset.Get(by.Name)) }) {
					found.series = append(found.series, s)
				}
			}
			return found
		},
	}, nil
}

// selection is a storage.SeriesSet.
type selection struct {
	series []*storage.SeriesEntry
	at     int
}

func (s *selection) Next() bool {
	s.at++
	return s.at < len(s.series)
}
func (s *selection) At() storage.Series                { return s.series[s.at] }
func (s *selection) Err() error                        { return nil }
func (s *selection) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample of a number.
type sample struct {
	at    int64 // in milliseconds since 1970
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
