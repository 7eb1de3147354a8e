package service

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// risky writes the graph of channel stable: an update from 1.0.0 to 1.1.0 with a query.
func (c *cluster) risky(image, next, query string) {
	c.t.Helper()
	c.write(c.graph+"/stable.json", fmt.Appendf(nil, `{"nodes":[{"version":"1.0.0","payload":%q},{"version":"1.1.0","payload":%q}],
		"conditionalEdges":[{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"name":"Slow","message":"m","url":"https://example.com/Slow",
			"matchingRules":[{"type":"PromQL","promql":{"promql":%q}}]}]}]}`, image, next, query))
}

// judged waits for a result of a query, which is the only rule, and for the advice that follows from it.
func judged(query, status, recommended, message string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		want := fmt.Sprintf("%s: %s %s, evaluated: %t, %s", query, status, recommended, status != plan.Unknown, message)
		for _, u := range cv.GetStatus().GetConditionalUpdates() {
			o := u.GetRisks()[0].GetOutcomes()[0]
			said := plan.Find(u.GetConditions(), plan.Recommended)
			if got := fmt.Sprintf("%s: %s %s, evaluated: %t, %s", o.GetPromql(), o.GetStatus(), said.GetStatus(),
				o.GetEvaluated() != nil,
				o.GetMessage()); strings.HasPrefix(got, want) && o.GetSince() != nil && o.GetAttempted() != nil {
				return ""
			}
		}
		return "no risk with " + want
	}
}

func TestRisksAreJudgedByTheClustersOwnMetrics(t *testing.T) {
	c, next := installed(t, func(cfg *config) { cfg.poll, cfg.Peers = 50*time.Millisecond, nil })
	for query, want := range map[string][3]string{
		`group(cluster_version{type="initial",version=~"1[.]0[.].*"}) or 0 * group(cluster_version)`: {"True", "False"},
		`group(cluster_version{type="initial",version=~"0[.]9[.].*"}) or 0 * group(cluster_version)`: {"False", "True"},
		`max(cluster_operator_conditions{name="ledger",condition="Degraded"})`:                       {"False", "True"},
		`max(cluster_operator_up{name="ledger",version="1.0.0"})`:                                    {"True", "False"},
		`max(cluster_version_available_updates) >= bool 100`:                                         {"False", "True"},
		`max(no_such_metric)`: {"Unknown", "Unknown", "the query must return one sample, but returns 0"},
		`max(up @ 0)`:         {"Unknown", "Unknown", "the query has the modifier @, which is not supported"},
	} {
		c.risky(c.cfg.initial, next, query)
		c.version(judged(query, want[0], want[1], want[2]))
	}
	// What a former leader found counts, and is not evaluated again before it is due.
	const query = `group(cluster_version)`
	c.risky(c.cfg.initial, next, query)
	before := c.version(judged(query, "True", "False",
		"")).GetStatus().GetConditionalUpdates()[0].GetRisks()[0].GetOutcomes()[0]
	c.stop()
	c.run()
	c.follow("stable")
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{AcceptRisks: []*updatev1.AcceptedRisk{{Name: "Slow"}}}
	})
	after := c.version(judged(query, "True", "True",
		"")).GetStatus().GetConditionalUpdates()[0].GetRisks()[0].GetOutcomes()[0]
	if !before.GetAttempted().AsTime().Equal(after.GetAttempted().AsTime()) {
		t.Errorf("evaluated at %v, and again at %v", before.GetAttempted().AsTime(), after.GetAttempted().AsTime())
	}
}

// What was retrieved last is judged also by a new leader whose upstream does not answer.
func TestRisksAreJudgedWhileTheUpstreamDoesNotAnswer(t *testing.T) {
	c, next := installed(t, func(cfg *config) { cfg.poll, cfg.Peers = 50*time.Millisecond, nil })
	const query = `group(cluster_version)`
	c.risky(c.cfg.initial, next, query)
	c.version(judged(query, "True", "False", ""))
	c.write(c.graph+"/stable.json", []byte("<html>"))
	c.version(has("RetrievedUpdates", "False", "ResponseInvalid"))
	c.stop()
	c.run()
	for accepted, recommended := range map[string]string{"Slow": "True", "Other": "False"} {
		c.edit(func(s *updatev1.ClusterVersionSpec) {
			s.DesiredUpdate = &updatev1.DesiredUpdate{AcceptRisks: []*updatev1.AcceptedRisk{{Name: accepted}}}
		})
		c.version(judged(query, "True", recommended, ""))
	}
	c.version(has("RetrievedUpdates", "False", "ResponseInvalid"))
}

// A query is repeated when it is due, also if the upstream always answers the same and nothing else happens.
func TestAQueryIsRepeatedWhenItIsDue(t *testing.T) {
	c, next := installed(t, func(cfg *config) { cfg.poll, cfg.Peers = 10*time.Minute, nil })
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, c.graph+"/stable.json")
	}))
	defer upstream.Close()
	const query = `group(cluster_version)`
	c.risky(c.cfg.initial, next, query)
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.Upstream = upstream.URL })
	c.version(judged(query, "True", "False", ""))
	c.stop()
	p := c.ground.Process(serve.Config{Name: "aging"})
	tables := kinds.New(store.New(etcdtest.Client(t), "/windlass/update-orchestrator/"), p.Validator, p.Log)
	stop := servetest.Run(t, p, tables.Versions.Run)
	due := time.Now().Add(-time.Hour).Add(5 * time.Second)
	if _, err := tables.Versions.Modify(t.Context(), object.Key{Name: kinds.Version},
		func(cv *updatev1.ClusterVersion) error {
			o := cv.GetStatus().GetConditionalUpdates()[0].GetRisks()[0].GetOutcomes()[0]
			o.Attempted, o.Evaluated = timestamppb.New(due), timestamppb.New(due)
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	stop()
	c.run()
	c.version(func(cv *updatev1.ClusterVersion) string {
		at := cv.GetStatus().GetConditionalUpdates()[0].GetRisks()[0].GetOutcomes()[0].GetAttempted().AsTime()
		if !at.After(due.Add(time.Minute)) {
			return "not evaluated again: " + at.String()
		}
		return ""
	})
}

func TestRisksAreJudgedByAPrometheusServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,%q]}]}}`,
			map[bool]string{true: "1", false: "0"}[r.FormValue("query") == "slow"])
	}))
	defer server.Close()
	c, next := installed(t, func(cfg *config) { cfg.poll, cfg.prometheus.address = 50*time.Millisecond, server.URL })
	c.risky(c.cfg.initial, next, "slow")
	c.version(judged("slow", "True", "False", ""))
	c.risky(c.cfg.initial, next, "fast")
	c.version(judged("fast", "False", "True", ""))
	server.Close()
	c.risky(c.cfg.initial, next, "gone")
	c.version(judged("gone", "Unknown", "Unknown", "the Prometheus server: "))
}
