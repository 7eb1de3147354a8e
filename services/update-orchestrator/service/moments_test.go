package service

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/Masterminds/semver/v3"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestAnAnswerThatComesAfterAnUpdateHasBegunIsNotShown(t *testing.T) {
	c, next := installed(t)
	type question struct {
		version string
		answer  chan struct{}
	}
	asked := make(chan question)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := question{r.URL.Query().Get("version"), make(chan struct{})}
		select {
		case asked <- q:
		case <-r.Context().Done():
			return
		}
		select {
		case <-q.answer:
		case <-r.Context().Done():
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{ // a client that went away needs none
			"nodes": []any{
				map[string]any{"version": "1.0.0", "payload": c.cfg.initial},
				map[string]any{"version": "1.1.0", "payload": next},
				map[string]any{"version": "1.0.1", "payload": repository + "@sha256:" + strings.Repeat("0", 64)},
			},
			"edges": [][]int{{0, 1}, {0, 2}},
		})
	}))
	defer upstream.Close()
	defer c.stop()
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.Upstream = upstream.URL })
	first := <-asked
	if first.version != "1.0.0" {
		t.Fatalf("asked for updates of %s", first.version)
	}
	c.desire("", next)
	c.version(func(cv *updatev1.ClusterVersion) string {
		if cv.GetStatus().GetDesired().GetVersion() != "1.1.0" {
			return "the update has not begun"
		}
		return ""
	})
	close(first.answer)
	if second := <-asked; second.version != "1.1.0" { // the first answer has been taken in
		t.Fatalf("asked for updates of %s", second.version)
	}
	cv := c.version(func(*updatev1.ClusterVersion) string { return "" })
	if offers("1.0.1")(cv) == "" {
		t.Errorf("an update from 1.0.0 is offered to 1.1.0: %v", cv.GetStatus().GetAvailableUpdates())
	}
}

func TestWhatIsWrongWithAWishIsSaidWhileAnUpdateWaits(t *testing.T) {
	c, _ := installed(t)
	c.ready(operators...)
	c.slow.Store(true)
	c.desire("1.1.0", "")
	c.version(waitsFor("beacon"))
	c.version(func(cv *updatev1.ClusterVersion) string {
		if w := cv.GetStatus().GetProgress().GetWaits(); len(w) != 1 || w[0].GetObject().GetKind() != "Deployment" {
			return "does not wait for the deployment"
		}
		return ""
	})
	c.desire("7.7.7", "")
	c.version(func(cv *updatev1.ClusterVersion) string {
		if cv.GetStatus().GetObservedGeneration() != cv.GetMetadata().GetGeneration() {
			return "the change of the spec is not taken up"
		}
		return has("Invalid", "True", "InvalidClusterVersion")(cv)
	})
	c.slow.Store(false)
	c.version(completed("1.1.0"))
}

func TestAManifestThatFailedIsTriedAgainWhileOthersWait(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.2")
	files["0000_20_archive_02_service.yaml"] = service("archive")
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	refusal := rpcerr.Forbidden("no such right")
	c.refusal.Store(&refusal)
	c.ready("archive")
	c.desire("", next)
	c.version(has("Failing", "True", "UpdatePayloadFailed"))
	c.version(waitsFor("ledger"))
	c.refusal.Store(nil)
	servetest.Await(t, func() string { // the ledger may need it
		if !c.seen("Service/archive") {
			return "the service is not there"
		}
		return ""
	})
	c.version(has("Failing", "False", ""))
	c.version(waitsFor("ledger"))
	c.ready("ledger", "beacon")
	c.version(completed("1.0.2"))
}

func TestAnUpdateGoesOnWhileAnotherReleaseIsLookedAt(t *testing.T) {
	c, _ := installed(t)
	c.ready("archive", "beacon")
	c.desire("1.1.0", "")
	c.version(waitsFor("ledger"))
	asked, answer := make(chan struct{}), make(chan struct{})
	var first sync.Once
	signatures := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		first.Do(func() { close(asked) })
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	defer signatures.Close()
	defer close(answer)
	other := c.image("1.1.1", example("1.1.1"), "1.1.0")
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.SignatureStores = []*updatev1.SignatureStore{{Url: signatures.URL}}
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(other)}
	})
	<-asked
	c.ready("ledger")
	c.version(completed("1.1.0"))
}

func TestARefusedWishThatIsTakenBackLeavesNothingBehind(t *testing.T) {
	c := start(t)
	c.run()
	c.version(has("Available", "True", ""))
	next := semver.MustParse(version.Number).IncPatch()
	c.desire("", c.image(next.String(), example(next.String()))) // which is not signed
	c.version(has("ReleaseAccepted", "False", "VerifyPayload"))
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.DesiredUpdate = nil })
	c.version(func(cv *updatev1.ClusterVersion) string {
		if accepted := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted"); accepted != nil {
			return "the refusal stays"
		}
		return ""
	})
}

func TestReleasesThatTheHistoryHasForgottenGo(t *testing.T) {
	c, _ := installed(t)
	p := c.ground.Process(serve.Config{Name: "predecessor"})
	old := resource.NewTable(store.New(etcdtest.Client(t), "/windlass/update-orchestrator/"), p.Validator,
		resource.Config[*updatev1.Release]{})
	servetest.Run(t, p, old.Run)
	if _, err := old.Create(t.Context(), &updatev1.Release{
		Metadata: &metav1.ObjectMeta{Name: "0.9.0-0123456789ab"}, Spec: &updatev1.ReleaseSpec{
			Image: repository + "@sha256:" + strings.Repeat("0", 64),
		},
	}); err != nil {
		t.Fatal(err)
	}
	client := updatev1.NewReleaseServiceClient(c.admin)
	versions := func() []string {
		list, err := client.ListReleases(t.Context(), &updatev1.ListReleasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range list.GetItems() {
			out = append(out, strings.SplitN(r.GetMetadata().GetName(), "-", 2)[0])
		}
		return out
	}
	servetest.Await(t, func() string {
		if !slices.Contains(versions(), "0.9.0") {
			return "the old release is not seen"
		}
		return ""
	})
	c.desire("1.1.0", "")
	servetest.Await(t, func() string {
		if have := versions(); !slices.Equal(have, []string{"1.0.0", "1.1.0"}) {
			return "releases are " + strings.Join(have, ", ")
		}
		return ""
	})
}

func TestAQuestionAboutUpdatesThatCannotBeAnsweredSaysWhy(t *testing.T) {
	c := start(t)
	c.run()
	c.version(has("Available", "True", ""))
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	out, err := client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{WhyNot: "9.9.9"})
	if err != nil || !strings.Contains(out.GetWhyNot(), "names no update service") {
		t.Errorf("without an upstream: %v, %v", out, err)
	}
	graph, err := structpb.NewStruct(map[string]any{
		"nodes": []any{map[string]any{"version": "1.0.0"}, map[string]any{"version": "1.0.1"}},
		"edges": []any{[]any{0, 1}, []any{1, 0}, []any{0, 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{
		Graph: graph, Version: "1.0.0",
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "graph.edges[2][1]: 2 is out") {
		t.Errorf("a graph with an edge to nowhere: %v", err)
	}
}
