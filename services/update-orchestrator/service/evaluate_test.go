package service

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func TestUpdatesAreEvaluatedAsTheRequestSays(t *testing.T) {
	c, next := installed(t, func(cfg *config) { cfg.Peers = nil })
	var asked sync.Map // the architectures
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.FormValue("arch"), true)
		http.ServeFile(w, r, c.graph+"/stable.json")
	}))
	defer upstream.Close()
	const query = `group(cluster_version)`
	c.risky(c.cfg.initial, next, query)
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.Upstream = upstream.URL
		s.DesiredUpdate = &updatev1.DesiredUpdate{AcceptRisks: []*updatev1.AcceptedRisk{{Name: "Slow"}}}
	})
	c.version(judged(query, "True", "True", ""))
	foreign, err := structpb.NewStruct(map[string]any{
		"nodes": []any{
			map[string]any{"version": "3.0.0", "payload": "a@sha256:1"},
			map[string]any{"version": "3.0.1", "payload": "b@sha256:2"},
		},
		"conditionalEdges": []any{map[string]any{
			"edges": []any{map[string]any{"from": "3.0.0", "to": "3.0.1"}},
			"risks": []any{map[string]any{"name": "Slow", "matchingRules": []any{map[string]any{"type": "Always"}}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	for _, tt := range []struct {
		request *updatev1.EvaluateClusterVersionRequest
		want    string // architecture, what is accepted, the present release and the available updates
	}{
		{
			&updatev1.EvaluateClusterVersionRequest{},
			fmt.Sprintf("%s [Slow] 1.0.0 %s [1.1.0] True", runtime.GOARCH, c.cfg.initial),
		},
		{
			&updatev1.EvaluateClusterVersionRequest{Architecture: "sparc", AcceptRisks: []string{"Other"}},
			fmt.Sprintf("sparc [Other] 1.0.0 %s [] True", c.cfg.initial),
		},
		{
			&updatev1.EvaluateClusterVersionRequest{Version: "1.0.0"},
			fmt.Sprintf("%s [] 1.0.0 %s [] True", runtime.GOARCH, c.cfg.initial),
		},
		{
			&updatev1.EvaluateClusterVersionRequest{Version: "9.9.9"},
			fmt.Sprintf("%s []   [] False VersionNotFound", runtime.GOARCH),
		},
		{
			&updatev1.EvaluateClusterVersionRequest{Graph: foreign, Version: "3.0.0"},
			" [] 3.0.0 a@sha256:1 [] True",
		},
		{
			&updatev1.EvaluateClusterVersionRequest{Graph: foreign, Version: "3.0.0", AcceptRisks: []string{"Slow"}},
			" [Slow] 3.0.0 a@sha256:1 [3.0.1] True",
		},
	} {
		r, err := client.EvaluateClusterVersion(t.Context(), tt.request)
		if err != nil {
			t.Errorf("%v: %v", tt.request, err)
			continue
		}
		available := []string{}
		for _, u := range r.GetAvailableUpdates() {
			available = append(available, u.GetVersion())
		}
		retrieved := r.GetConditions()[0]
		got := strings.TrimSpace(fmt.Sprintf("%s %v %s %s %v %s %s", r.GetArchitecture(), r.GetAcceptRisks(),
			r.GetCurrent().GetVersion(), r.GetCurrent().GetImage(), available, retrieved.GetStatus(), retrieved.GetReason()))
		if got != strings.TrimSpace(tt.want) || r.GetQuery() != nil {
			t.Errorf("%v:\n got %s\nwant %s", tt.request, got, tt.want)
		}
	}
	if _, ok := asked.Load("sparc"); !ok {
		t.Error("the upstream was not asked for the architecture of the request")
	}
	for path, req := range map[string]*updatev1.EvaluateClusterVersionRequest{
		"acceptRisks[1]": {AcceptRisks: []string{"A", "A"}},
		"acceptRisks[0]": {AcceptRisks: []string{""}},
		"query":          {Query: strings.Repeat("é", 2049)},
		"architecture":   {Graph: foreign, Version: "3.0.0", Architecture: "sparc"},
	} {
		_, err := client.EvaluateClusterVersion(t.Context(), req)
		faults, _ := rpcerr.Fields(err)
		if status.Code(err) != codes.InvalidArgument ||
			!slices.ContainsFunc(faults, func(f object.Fault) bool { return f.Path == path }) {
			t.Errorf("a request with a wrong %s: %v", path, err)
		}
	}
}

func TestAQueryIsTriedBeforeItIsPublished(t *testing.T) {
	c, _ := installed(t, func(cfg *config) { cfg.Peers = nil })
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	begin := time.Now()
	queries := map[string][2]string{
		`group(cluster_version{type="initial",version=~"1[.]0[.].*"})`:         {"True", ""},
		`max(cluster_operator_conditions{name="ledger",condition="Degraded"})`: {"False", ""},
		`max(no_such_metric)`: {"Unknown", "the query must return one sample, but returns 0"},
		`max(up @ 0)`:         {"Unknown", "the query has the modifier @, which is not supported"},
		`max(max_over_time(cluster_version[1h]))`: {"Unknown", "the samples reach back 0s of the 1h0m0s"},
		`max(`: {"Unknown", "the query is not valid: "},
	}
	for query, want := range queries {
		r, err := client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{
			Version: "3.0.0", Query: query, // it is about this cluster nevertheless
		})
		o := r.GetQuery()
		if err != nil || o.GetPromql() != query || o.GetStatus() != want[0] || !strings.HasPrefix(o.GetMessage(), want[1]) ||
			o.GetVersion() != "1.0.0" || o.GetAttempted() == nil || (o.GetEvaluated() != nil) != (want[0] != plan.Unknown) {
			t.Errorf("%s: %v, %v, want %v", query, o, err, want)
		}
	}
	if took, least := time.Since(begin), time.Duration(len(queries)-1)*plan.BetweenQueries; took < least {
		t.Errorf("%d queries took %s, want %s or more", len(queries), took, least)
	}
	const calls = 12
	codesOf := make(chan codes.Code, calls)
	for range calls {
		go func() {
			_, err := client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{Query: "up"})
			codesOf <- status.Code(err)
		}()
	}
	got := map[codes.Code]int{}
	for range calls {
		got[<-codesOf]++
	}
	if got[codes.OK] == 0 || got[codes.ResourceExhausted] == 0 || len(got) != 2 {
		t.Errorf("%d calls at once: %v", calls, got)
	}
}
