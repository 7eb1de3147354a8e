package service

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-containerregistry/pkg/registry"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

var operators = []string{"archive", "beacon", "ledger"}

// installed is a cluster at 1.0.0 whose channel offers 1.1.0, which is signed.
func installed(t *testing.T, settings ...func(*config)) (c *cluster, next string) {
	t.Helper()
	c = start(t)
	for _, set := range settings {
		set(&c.cfg)
	}
	c.cfg.initial = c.image("1.0.0", example("1.0.0"))
	next = c.image("1.1.0", example("1.1.0"), "1.0.0")
	c.sign(next, c.key)
	c.offer([2]string{"1.0.0", c.cfg.initial}, [2]string{"1.1.0", next})
	c.run()
	stop := c.ready(operators...)
	c.version(completed("1.0.0"))
	stop()
	for _, name := range operators {
		c.report(name, "1.0.0", false)
	}
	c.follow("stable")
	c.version(offers("1.1.0"))
	c.forget()
	return c, next
}

// holds reports whether a manifest of a kind without an owner is kept as a release has it.
func (c *cluster) holds(name, version string) bool {
	c.t.Helper()
	list, err := updatev1.NewManifestServiceClient(c.admin).ListManifests(c.t.Context(), &updatev1.ListManifestsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.ContainsFunc(list.GetItems(), func(m *updatev1.Manifest) bool {
		return m.GetSpec().GetObject().GetName() == name && m.GetSpec().GetVersion() == version
	})
}

func TestAnUpdateWaitsForTheOperatorsOfEachRunLevel(t *testing.T) {
	c, next := installed(t)
	c.slow.Store(true)
	c.desire("1.1.0", "")
	c.version(waitsFor("archive", "ledger"))
	if c.holds("beacon", "1.1.0") || c.seen("MachineConfig/50-worker-release") {
		t.Error("something of run level 25 or later was applied while run level 20 waits")
	}
	c.report("ledger", "1.1.0", false)
	c.version(waitsFor("archive"))
	c.report("archive", "1.1.0", true) // at the version, but degraded
	c.version(func(cv *updatev1.ClusterVersion) string {
		if w := cv.GetStatus().GetProgress().GetWaits(); len(w) != 1 || !strings.Contains(w[0].GetFact(), "Degraded") {
			return "does not wait for the end of a degradation"
		}
		return ""
	})
	c.report("archive", "1.1.0", false)
	cv := c.version(waitsFor("beacon"))
	if p := cv.GetStatus().GetProgress(); p.GetRunLevel() != "25" || p.GetTotal() != 10 {
		t.Errorf("progress is %v", p)
	}
	c.version(func(cv *updatev1.ClusterVersion) string {
		const want = "Working towards 1.1.0: 7 of 10 done (70% complete), waiting on beacon"
		if m := object.FindCondition(cv.GetStatus().GetConditions(), "Progressing").GetMessage(); m != want {
			return "Progressing does not say " + want
		}
		return ""
	})
	c.report("beacon", "1.1.0", false)
	c.version(waitsFor("beacon")) // the deployment now
	if c.seen("MachineConfig/50-worker-release") {
		t.Error("nodes are configured before the deployment is renewed")
	}
	c.slow.Store(false)
	cv = c.version(completed("1.1.0"))
	h := cv.GetStatus().GetHistory()
	if len(h) != 2 || h[0].GetImage() != next || !h[0].GetVerified() || h[1].GetVersion() != "1.0.0" ||
		h[1].GetVerified() {
		t.Errorf("history is %v", h)
	}
	if st := cv.GetStatus(); st.GetProgress() != nil || st.GetDesired().GetVersion() != "1.1.0" ||
		st.GetVersionHash() == "" {
		t.Errorf("status is %v", st)
	}
	for typ, want := range map[string]string{
		"Available": "True", "Progressing": "False", "Failing": "False",
		"ReleaseAccepted": "True",
	} {
		c.version(has(typ, want, ""))
	}
	list, err := eventv1.NewEventServiceClient(c.admin).ListEvents(t.Context(), &eventv1.ListEventsRequest{})
	if err != nil || !slices.ContainsFunc(list.GetItems(), func(e *eventv1.Event) bool {
		return e.GetReason() == "PayloadLoaded"
	}) {
		t.Errorf("events are %v, %v", list, err)
	}
}

func TestWithoutWaitsAnUpdateTakesNoTimeOfItsOwn(t *testing.T) {
	c, _ := installed(t)
	c.ready(operators...)
	begun := time.Now()
	c.desire("1.1.0", "")
	c.version(completed("1.1.0"))
	if took := time.Since(begun); took > 20*time.Second { // a wait of seconds for each manifest, even on a busy host
		t.Errorf("10 manifests took %v with operators that answer at once", took)
	} else {
		t.Logf("took %v", took)
	}
}

// written is everything that is stored for a release from now on, in the order of the store.
func (c *cluster) written() <-chan string {
	c.t.Helper()
	client := etcdtest.Client(c.t)
	now, err := client.Get(c.t.Context(), "/")
	if err != nil {
		c.t.Fatal(err)
	}
	watch := client.Watch(c.t.Context(), "/windlass/", clientv3.WithPrefix(), clientv3.WithRev(now.Header.GetRevision()+1))
	keys := make(chan string, 1000)
	go func() {
		for batch := range watch {
			for _, e := range batch.Events {
				key := string(e.Kv.Key)
				for _, kind := range []string{"manifests", "clusteroperators", "deployments", "machineconfigs"} {
					if strings.Contains(key, "/"+kind+"/") {
						keys <- kind + key[strings.LastIndex(key, "/"):]
					}
				}
			}
		}
	}()
	return keys
}

func TestAnUpdateGoesOnAfterAKillAtEachManifest(t *testing.T) {
	c, next := installed(t)
	c.ready(operators...)
	written := c.written()
	c.desire("1.1.0", "")
	begun := c.version(func(cv *updatev1.ClusterVersion) string {
		if cv.GetStatus().GetHistory()[0].GetVersion() != "1.1.0" {
			return "the update has not begun"
		}
		return ""
	}).GetStatus().GetHistory()[0]
	var order []string // each at its first time
	for len(order) < 8 {
		select {
		case key := <-written:
			if slices.Contains(order, key) {
				continue
			}
			order = append(order, key)
			c.stop()
			c.run()
		case <-time.After(2 * time.Minute):
			t.Fatalf("the update stopped after %v", order)
		}
	}
	h := c.version(completed("1.1.0")).GetStatus().GetHistory()
	if len(h) != 2 || !proto.Equal(h[0].GetStartedTime(), begun.GetStartedTime()) || h[0].GetImage() != next ||
		!h[0].GetVerified() {
		t.Errorf("history is %v, begun as %v", h, begun)
	}
	at := func(prefix string) int {
		return slices.IndexFunc(order, func(key string) bool { return strings.HasPrefix(key, prefix) })
	}
	for _, pair := range [][2]string{
		{"manifests/limitrange-archive-", "clusteroperators/archive"},
		{"manifests/limitrange-ledger-", "clusteroperators/ledger"},
		{"clusteroperators/archive", "manifests/limitrange-beacon-"},
		{"clusteroperators/ledger", "manifests/limitrange-beacon-"},
		{"manifests/limitrange-beacon-", "clusteroperators/beacon"},
		{"clusteroperators/beacon", "deployments/beacon"},
		{"deployments/beacon", "machineconfigs/"},
	} {
		if at(pair[0]) < 0 || at(pair[1]) < at(pair[0]) {
			t.Errorf("%s does not come before %s in %v", pair[0], pair[1], order)
		}
	}
}

func TestWhatAnOwnerRefusesIsSaidAndTriedAgain(t *testing.T) {
	c, _ := installed(t)
	c.ready(operators...)
	refuse := func(err error) { c.refusal.Store(&err) }
	refuse(rpcerr.Unavailable("starting"))
	c.desire("1.1.0", "")
	c.version(func(cv *updatev1.ClusterVersion) string {
		w := cv.GetStatus().GetProgress().GetWaits()
		if len(w) != 1 || w[0].GetObject().GetKind() != "Deployment" || !strings.Contains(w[0].GetObserved(), "starting") {
			return "does not wait for the scheduler"
		}
		return ""
	})
	c.version(has("Failing", "False", ""))
	refuse(rpcerr.Forbidden("no such right"))
	c.version(func(cv *updatev1.ClusterVersion) string {
		f := object.FindCondition(cv.GetStatus().GetConditions(), "Failing")
		if f.GetReason() != "UpdatePayloadFailed" ||
			!strings.Contains(f.GetMessage(),
				`Could not update Deployment "beacon/beacon" (0000_50_beacon_00_deployment.yaml): no such right`) {
			return "the refusal is not said"
		}
		return ""
	})
	c.refusal.Store(nil)
	c.version(completed("1.1.0"))
	c.version(has("Failing", "False", ""))
}

func TestAnnotationsSayHowAManifestIsApplied(t *testing.T) {
	c, _ := installed(t)
	marked := func(content, annotation string) string {
		return strings.Replace(content, "  annotations:\n", "  annotations:\n    "+annotation+"\n", 1)
	}
	files := example("1.0.2")
	once := marked(files["0000_50_beacon_00_deployment.yaml"], `release.openshift.io/create-only: "true"`)
	files["0000_50_beacon_00_deployment.yaml"] = once
	files["0000_50_more_00_new.yaml"] = strings.ReplaceAll(once, "name: beacon", "name: more")
	files["0000_20_ledger_00_settings.yaml"] = marked(kept("ledger", "9"), `release.openshift.io/create-only: "true"`)
	files["0000_20_archive_00_settings.yaml"] = marked(kept("archive", "1.0.2"), `release.openshift.io/delete: "true"`)
	files["0000_10_ledger_00_service.yaml"] = marked(service("ledger"), `release.openshift.io/delete: "true"`)
	files["0000_80_machine-config_00_worker.yaml"] = marked(files["0000_80_machine-config_00_worker.yaml"],
		`exclude.release.openshift.io/windlass: "true"`)
	files["0000_50_more_02_version.yaml"] = manifest("ClusterVersion", "config.openshift.io/v1", "version",
		"spec: {channel: other}\n")
	files["0000_50_more_03_job.yaml"] = manifest("Job", "batch/v1", "migrate",
		"  namespace: beacon\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: m, image: m}]\n")
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(waitsFor("migrate"))
	if c.seen("MachineConfig/50-worker-release") {
		t.Error("something passed the job")
	}
	if _, err := c.jobs.Modify(t.Context(), object.Key{Namespace: "beacon", Name: "migrate"},
		func(j *schedulingv1.Job) error {
			j.Status = &schedulingv1.JobStatus{Conditions: []*metav1.Condition{{Type: "Complete", Status: "True"}}}
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	cv := c.version(completed("1.0.2"))
	if cv.GetSpec().GetChannel() != "stable" {
		t.Error("a release changed the spec of the ClusterVersion")
	}
	if !c.seen("Deployment/more") {
		t.Errorf("applied %v", c.applied)
	}
	if _, err := c.configs.Get(t.Context(), "", "50-worker-release"); status.Code(err) != codes.NotFound {
		t.Errorf("what the release does not bring to this cluster: %v", err)
	}
	if d, err := c.deployments.Get(t.Context(), "beacon", "beacon"); err != nil || d.GetMetadata().GetGeneration() != 1 {
		t.Errorf("what is made once only was changed: %v, %v", d, err)
	}
	if _, err := c.services.Get(t.Context(), "ledger", "ledger"); status.Code(err) != codes.NotFound {
		t.Errorf("the service to delete: %v", err)
	}
	if c.holds("archive", "1.0.0") || c.holds("archive", "1.0.2") || !c.holds("ledger", "1.0.0") {
		t.Error("kept manifests are not as the release says")
	}
}

func TestAWorkloadThatIsDeletedWhileItIsWaitedForIsMadeAnew(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.2")
	files["0000_50_more_03_job.yaml"] = manifest("Job", "batch/v1", "migrate",
		"  namespace: beacon\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: m, image: m}]\n")
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(waitsFor("migrate"))
	first, err := c.jobs.Delete(t.Context(), "beacon", "migrate", nil)
	if err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if j, err := c.jobs.Get(t.Context(), "beacon", "migrate"); err != nil ||
			j.GetMetadata().GetUid() == first.GetMetadata().GetUid() {
			return "the job is not there again"
		}
		return ""
	})
	if _, err := c.jobs.Modify(t.Context(), object.Key{Namespace: "beacon", Name: "migrate"},
		func(j *schedulingv1.Job) error {
			j.Status = &schedulingv1.JobStatus{Conditions: []*metav1.Condition{{Type: "Complete", Status: "True"}}}
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	c.version(completed("1.0.2"))
}

func TestAWishThatIsTakenBackWhileItIsVerifiedIsNotFollowed(t *testing.T) {
	c, next := installed(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	var first sync.Once
	signatures := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first.Do(func() { close(asked) })
		<-answer
		http.FileServer(http.Dir(c.signed)).ServeHTTP(w, r)
	}))
	defer signatures.Close()
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.SignatureStores = []*updatev1.SignatureStore{{Url: signatures.URL}}
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(next)}
	})
	<-asked
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.DesiredUpdate = nil })
	close(answer)
	cv := c.version(has("ReleaseAccepted", "True", "PayloadLoaded"))
	if h := cv.GetStatus().GetHistory(); len(h) != 1 || cv.GetStatus().GetDesired().GetVersion() != "1.0.0" {
		t.Errorf("the cluster is on its way to %s: %v", cv.GetStatus().GetDesired().GetVersion(), h)
	}
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(next)}
	})
	c.ready(operators...)
	c.version(completed("1.1.0"))
}

func TestAReleaseThatCannotBeTrustedChangesNothing(t *testing.T) {
	c, _ := installed(t)
	before := c.version(func(*updatev1.ClusterVersion) string { return "" }).GetStatus()
	files := example("1.1.1")

	unsigned := c.image("1.1.1", files)
	foreign := c.image("1.1.2", files)
	c.sign(foreign, c.newKey("stranger", ""))
	tampered := c.image("1.1.3", files)
	c.sign(tampered, c.key)
	c.tamper(tampered)
	escape := c.escape()
	c.sign(escape, c.key)
	broken := c.image("1.1.4",
		map[string]string{"0000_10_x_y.yaml": manifest("Service", "v1", "x", "spec: {nonsense: 1}\n")})
	c.sign(broken, c.key)
	other := c.image("1.1.5", files)
	c.sign(other, c.key)
	old := c.image("0.9.0", files)
	c.sign(old, c.key)
	stranding := c.image("1.1.7", map[string]string{
		"0000_10_x_y.yaml": manifest("ConfigMap", "v1", "trust", "    release.openshift.io/verification-config-map: \"\"\n"+
			"  namespace: x\ndata: {verifier-public-key-x: nonsense, store-x: \"https://example.com\"}\n"),
	})
	c.sign(stranding, c.key)
	for _, test := range []struct{ name, image, version, reason string }{
		{"brings keys that cannot be read", stranding, "", "PreconditionChecks"},
		{"is not there", repository + "@sha256:" + strings.Repeat("0", 64), "", "RetrievePayload"},
		{"is not signed", unsigned, "", "VerifyPayload"},
		{"is signed by a stranger", foreign, "", "VerifyPayload"},
		{"was changed after it was signed", tampered, "", ""},
		{"writes outside of its folder", escape, "", "LoadPayload"},
		{"has a document that fits no kind", broken, "", "LoadPayload"},
		{"is of another version than asked for", other, "1.1.6", "VerifyPayloadVersion"},
		{"is older", old, "", "PreconditionChecks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.desire(test.version, test.image)
			cv := c.version(func(cv *updatev1.ClusterVersion) string {
				condition := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted")
				if condition.GetStatus() != "False" || !strings.Contains(condition.GetMessage(), test.image) {
					return "the release is not refused"
				}
				return ""
			})
			condition := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted")
			t.Log(condition.GetReason(), condition.GetMessage())
			if test.reason != "" && condition.GetReason() != test.reason {
				t.Errorf("refused for %v", condition)
			}
			st := cv.GetStatus()
			if !proto.Equal(st.GetDesired(), before.GetDesired()) || len(st.GetHistory()) != 1 || st.GetProgress() != nil {
				t.Errorf("status is %v", st)
			}
			if len(c.applied) > 0 {
				t.Errorf("applied %v", c.applied)
			}
		})
	}
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.DesiredUpdate = nil })
	c.version(has("ReleaseAccepted", "True", "PayloadLoaded"))
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(stranding), Force: proto.Bool(true)}
	})
	refused := c.version(has("ReleaseAccepted", "False", "PreconditionChecks"))
	if m := object.FindCondition(refused.GetStatus().GetConditions(), "ReleaseAccepted").GetMessage(); !strings.Contains(m,
		"the release brings verification keys that cannot be read: 0000_10_x_y.yaml: ") {
		t.Errorf("by force: %s", m)
	}
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{Image: proto.String(unsigned), Force: proto.Bool(true)}
	})
	c.version(has("ReleaseAccepted", "False", "VerifyPayload"))
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate.Waive = []*updatev1.WaivedCheck{{Name: "VerifyPayload", Reason: "built here"}}
	})
	c.ready(operators...)
	h := c.version(completed("1.1.1")).GetStatus().GetHistory()
	if h[0].GetVerified() || !strings.Contains(h[0].GetAcceptedRisks(),
		"cannot be verified, but VerifyPayload is waived: "+
			`"built here"`) {
		t.Errorf("history of an update without a signature is %v", h[0])
	}
}

func TestAGraphThatMakesNoSenseIsSaid(t *testing.T) {
	c, next := installed(t, func(cfg *config) { cfg.poll = 50 * time.Millisecond })
	for name, graph := range map[string]string{
		"an edge to nowhere":    `{"nodes":[{"version":"1.0.0","payload":"x"}],"edges":[[0,7]]}`,
		"a target that is none": `{"nodes":[{"version":"1.0.0"},{"version":"one","payload":"x"}],"edges":[[0,1]]}`,
		"a target twice": `{"nodes":[{"version":"1.0.0","payload":"` + c.cfg.initial +
			`"},{"version":"1.1.0","payload":"` + next + `"},{"version":"1.1.0"}],"edges":[[0,1]]}`,
		"something else than JSON": `<html>`,
	} {
		t.Run(name, func(t *testing.T) {
			c.write(c.graph+"/stable.json", []byte(graph))
			c.version(has("RetrievedUpdates", "False", "ResponseInvalid"))
			c.version(offers("1.1.0")) // what was offered before still is
			c.offer([2]string{"1.0.0", c.cfg.initial}, [2]string{"1.1.0", next})
			c.version(has("RetrievedUpdates", "True", ""))
		})
	}
	c.offer([2]string{"2.0.0", next})
	c.version(has("RetrievedUpdates", "False", "VersionNotFound"))
	c.follow("")
	c.version(has("RetrievedUpdates", "False", "NoChannel"))
	c.desire("1.1.0", "")
	c.version(has("Invalid", "True", "InvalidClusterVersion"))
}

func TestTheInitialReleaseToleratesWhatAnUpdateDoesNot(t *testing.T) {
	c := start(t)
	c.cfg.initial = c.image("1.0.0", example("1.0.0"))
	c.run()
	c.version(waitsFor("archive", "beacon", "ledger")) // all run levels at once
	c.version(has("Available", "False", ""))
	for _, name := range operators {
		c.report(name, "0.9.0", true)
	}
	cv := c.version(completed("1.0.0"))
	if h := cv.GetStatus().GetHistory(); len(h) != 1 || h[0].GetImage() != c.cfg.initial {
		t.Errorf("history is %v", h)
	}
	if id := cv.GetSpec().GetClusterId(); len(id) != 36 {
		t.Errorf("clusterID is %q", id)
	}
	c.version(has("Available", "True", ""))
}

// An initial release whose operators never come up is not the end: another one can be taken up.
func TestAnInitialReleaseThatIsNeverCompleteIsReplaced(t *testing.T) {
	c := start(t)
	c.cfg.initial = c.image("1.0.0", example("1.0.0"))
	next := c.image("1.0.1", example("1.0.1"), "1.0.0")
	c.sign(next, c.key)
	c.run()
	c.version(waitsFor("archive", "beacon", "ledger"))
	c.desire("", next)
	c.version(waitsFor("archive", "ledger")) // in order, as an update
	c.ready(operators...)
	h := c.version(completed("1.0.1")).GetStatus().GetHistory()
	if len(h) != 2 || h[1].GetState() != "Partial" || !h[0].GetVerified() {
		t.Errorf("history is %v", h)
	}
}

// The cluster goes back from a minor update that was not completed, by the version alone, although the release before
// it is on no offer and was never signed.
func TestAnUpdateThatIsNotCompleteIsAborted(t *testing.T) {
	c, _ := installed(t)
	c.desire("1.1.0", "")
	c.version(waitsFor("archive", "ledger"))
	c.ready(operators...)
	c.desire("1.0.0", "")
	h := c.version(completed("1.0.0")).GetStatus().GetHistory()
	if len(h) != 3 || h[0].GetImage() != c.cfg.initial || h[1].GetState() != "Partial" || h[0].GetVerified() ||
		!strings.Contains(h[0].GetAcceptedRisks(), "the cluster was at it before the update that it aborts") {
		t.Errorf("history is %v", h)
	}
}

// A tag is resolved once: the digest that it had then is what the cluster stays at, however often it is looked, and
// wherever the tag points later.
func TestATagIsResolvedOnce(t *testing.T) {
	c, next := installed(t)
	registry := httptest.NewServer(registry.New())
	defer registry.Close()
	tag := strings.TrimPrefix(registry.URL, "http://") + "/windlass:next"
	c.push(next, tag)
	c.ready(operators...)
	c.desire("", tag)
	_, digest, _ := strings.Cut(next, "@")
	if st := c.version(completed("1.1.0")).GetStatus(); st.GetDesired().GetImage() != tag+"@"+digest {
		t.Errorf("desired is %v", st.GetDesired())
	}
	other := c.image("1.1.1", example("1.1.1"), "1.1.0")
	c.sign(other, c.key)
	c.push(other, tag)
	c.follow("") // a change of the spec, so that everything is compared again
	cv := c.version(func(cv *updatev1.ClusterVersion) string {
		if cv.GetStatus().GetObservedGeneration() != cv.GetMetadata().GetGeneration() {
			return "the change of the spec is not taken up"
		}
		return has("RetrievedUpdates", "False", "NoChannel")(cv)
	})
	if h := cv.GetStatus().GetHistory(); len(h) != 2 || cv.GetStatus().GetDesired().GetVersion() != "1.1.0" {
		t.Errorf("history is %v", h)
	}
	list, err := eventv1.NewEventServiceClient(c.admin).ListEvents(t.Context(), &eventv1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.GetItems() {
		if e.GetReason() == "PayloadLoaded" && strings.Contains(e.GetMessage(), `"1.1.0"`) && e.GetCount() > 1 {
			t.Errorf("the release was accepted %d times", e.GetCount())
		}
	}
}

func TestAClusterWithoutAnImageHasTheVersionOfTheProgram(t *testing.T) {
	c := start(t)
	c.run()
	cv := c.version(has("Available", "True", ""))
	if st := cv.GetStatus(); st.GetDesired().GetVersion() == "" || st.GetDesired().GetImage() != "" ||
		len(st.GetHistory()) != 0 {
		t.Errorf("status is %v", st)
	}
	next := semver.MustParse(version.Number).IncPatch() // a release that is far from the program is none that follows it
	first := c.image(next.String(), example(next.String()))
	c.sign(first, c.key)
	c.desire("", first)
	c.version(waitsFor("archive", "ledger")) // its first release comes in order
	c.ready(operators...)
	c.version(completed(next.String()))
}

func TestWhatChangesAfterwardsIsPutBack(t *testing.T) {
	c, _ := installed(t)
	manifests := updatev1.NewManifestServiceClient(c.admin)
	list, err := manifests.ListManifests(t.Context(), &updatev1.ListManifestsRequest{})
	if err != nil || len(list.GetItems()) != 3 {
		t.Fatal(list, err)
	}
	if _, err := manifests.DeleteManifest(t.Context(), &updatev1.DeleteManifestRequest{
		Name: list.GetItems()[0].GetMetadata().GetName(),
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if !c.holds(list.GetItems()[0].GetSpec().GetObject().GetName(), "1.0.0") {
			return "the manifest is not back"
		}
		return c.event("DriftPutBack", "LimitRange ")
	})
	c.report("ledger", "1.0.0", true)
	c.version(func(cv *updatev1.ClusterVersion) string {
		if len(cv.GetStatus().GetHistory()) != 1 || cv.GetStatus().GetProgress() != nil {
			return "reconciling has changed the history"
		}
		return ""
	})
}

func TestEverythingIsAppliedAgainFromTimeToTime(t *testing.T) {
	c, _ := installed(t, func(cfg *config) { cfg.reconcile = 100 * time.Millisecond })
	if _, err := c.services.Delete(t.Context(), "ledger", "ledger", nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := c.services.Get(t.Context(), "ledger", "ledger"); err != nil {
			return err.Error()
		}
		return ""
	})
	refusal := rpcerr.Forbidden("closed")
	if _, err := c.services.Delete(t.Context(), "beacon", "beacon", nil); err != nil {
		t.Fatal(err)
	}
	c.refusal.Store(&refusal)
	cv := c.version(has("Failing", "True", "UpdatePayloadFailed"))
	if m := object.FindCondition(cv.GetStatus().GetConditions(), "Progressing"); m.GetStatus() != "False" ||
		!strings.HasPrefix(m.GetMessage(), "Error while reconciling 1.0.0: ") {
		t.Errorf("Progressing is %v", m)
	}
	c.refusal.Store(nil)
	cv = c.version(has("Failing", "False", ""))
	if h := cv.GetStatus().GetHistory(); len(h) != 1 || cv.GetStatus().GetProgress() != nil {
		t.Errorf("history is %v", h)
	}
}

// event returns what is wrong with the events of the orchestrator if one is wanted whose message begins like that.
func (c *cluster) event(reason, message string) string {
	list, err := eventv1.NewEventServiceClient(c.admin).ListEvents(c.t.Context(), &eventv1.ListEventsRequest{})
	if slices.ContainsFunc(list.GetItems(), func(e *eventv1.Event) bool {
		return e.GetReason() == reason && strings.HasPrefix(e.GetMessage(), message)
	}) {
		return ""
	}
	return fmt.Sprintf("no event %s %q in %v, %v", reason, message, list, err)
}

func TestWhatOthersOwnIsPutBackByWatch(t *testing.T) {
	c, _ := installed(t)
	get := func() *schedulingv1.Deployment {
		d, err := c.deployments.Get(t.Context(), "beacon", "beacon")
		if err != nil {
			return nil
		}
		return d
	}
	was := get()
	edit := func(f func(d *schedulingv1.Deployment)) {
		t.Helper()
		if _, err := c.deployments.Modify(t.Context(), object.KeyOf(was), func(d *schedulingv1.Deployment) error {
			f(d)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	image := was.GetSpec().GetTemplate().GetSpec().GetContainers()[0].GetImage()
	edit(func(d *schedulingv1.Deployment) {
		d.Metadata.Annotations["example.com/note"] = "of a user"
		d.Spec.Template.Spec.Containers[0].Image = "example.com/evil"
	})
	began := time.Now()
	servetest.Await(t, func() string {
		if got := get().GetSpec().GetTemplate().GetSpec().GetContainers()[0].GetImage(); got != image {
			return "the image is " + got
		}
		return ""
	})
	t.Logf("put back after %s", time.Since(began))
	servetest.Await(t, func() string {
		return c.event("DriftPutBack", `Deployment "beacon/beacon" was changed by others, and is as release 1.0.0 has it `+
			"again: spec.template.spec.containers")
	})
	if get().GetMetadata().GetAnnotations()["example.com/note"] == "" {
		t.Error("the user's annotation is gone")
	}
	if _, err := c.services.Delete(t.Context(), "ledger", "ledger", nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := c.services.Get(t.Context(), "ledger", "ledger"); err != nil {
			return err.Error()
		}
		return ""
	})
	cv := c.version(completed("1.0.0"))
	if h := cv.GetStatus().GetHistory(); len(h) != 1 || cv.GetStatus().GetProgress() != nil {
		t.Errorf("history is %v", h)
	}
}

// One manifest that its owner refuses holds up no other.
func TestWhatIsRefusedHoldsUpNoOtherDrift(t *testing.T) {
	c, _ := installed(t)
	refusal := rpcerr.Forbidden("closed")
	c.refuse("Deployment/beacon", refusal)
	beacon, err := c.deployments.Get(t.Context(), "beacon", "beacon")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.deployments.Delete(t.Context(), "beacon", "beacon", nil); err != nil {
		t.Fatal(err)
	}
	c.version(has("Failing", "True", "UpdatePayloadFailed"))
	for _, name := range []string{"ledger", "beacon"} { // the pauses between passes over all manifests grow
		if _, err := c.services.Delete(t.Context(), name, name, nil); err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			if _, err := c.services.Get(t.Context(), name, name); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	if m := c.version(has("Failing", "True", "UpdatePayloadFailed")); m.GetStatus().GetProgress() != nil {
		t.Errorf("progress is %v", m.GetStatus().GetProgress())
	}
	c.refuse("", nil)
	c.version(has("Failing", "False", ""))
	if _, err := c.deployments.Get(t.Context(), "beacon", "beacon"); err != nil {
		t.Errorf("%s is not back: %v", beacon.GetMetadata().GetName(), err)
	}
}

// What is not applied yet because something before it fails has not drifted.
func TestWhatComesLaterWaitsForWhatFails(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.1")
	files["0000_90_zeta_00_settings.yaml"] = kept("zeta", "1.0.1")
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.refuse("Deployment/beacon", rpcerr.Forbidden("closed"))
	c.ready(operators...)
	c.desire("", next)
	servetest.Await(t, func() string {
		if n := c.refusals.Load(); n < 3 { // with pauses of 2 and 4 seconds
			return fmt.Sprintf("it was refused %d times", n)
		}
		return ""
	})
	if c.holds("zeta", "1.0.1") {
		t.Error("a manifest of run level 90 was applied, although one of run level 50 fails")
	}
	c.refuse("", nil)
	c.version(completed("1.0.1"))
}

// What people take out of the overrides is put back, also by a process that has never applied it.
func TestWhatIsManagedAgainIsPutBack(t *testing.T) {
	c, _ := installed(t)
	override := func(list ...*updatev1.ComponentOverride) {
		c.edit(func(s *updatev1.ClusterVersionSpec) { s.Overrides = list })
	}
	override(&updatev1.ComponentOverride{
		Kind: "Service", Namespace: "ledger", Name: "ledger", Unmanaged: proto.Bool(true),
	})
	c.version(has("Upgradeable", "False", ""))
	if _, err := c.services.Delete(t.Context(), "ledger", "ledger", nil); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.run()
	c.version(completed("1.0.0"))
	servetest.Await(t, func() string { // the pass of the new process has left it alone
		if !c.holds("archive", "1.0.0") {
			return "no pass"
		}
		return ""
	})
	override()
	servetest.Await(t, func() string {
		if _, err := c.services.Get(t.Context(), "ledger", "ledger"); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestWhatCannotBePutBackIsSaid(t *testing.T) {
	c, _ := installed(t)
	refusal := rpcerr.Forbidden("closed")
	if _, err := c.services.Delete(t.Context(), "beacon", "beacon", nil); err != nil {
		t.Fatal(err)
	}
	c.refusal.Store(&refusal)
	c.version(has("Failing", "True", "UpdatePayloadFailed"))
	c.refusal.Store(nil)
	c.version(has("Failing", "False", ""))
	if _, err := c.services.Get(t.Context(), "beacon", "beacon"); err != nil {
		t.Error(err)
	}
}

func TestAPausedUpdateWaits(t *testing.T) {
	c, next := installed(t)
	pause := func(p *updatev1.UpdatePause) { c.edit(func(s *updatev1.ClusterVersionSpec) { s.Pause = p }) }
	pause(&updatev1.UpdatePause{Reason: "trade fair", By: "another user"})
	c.desire("1.1.0", "")
	cv := c.version(has("ReleaseAccepted", "Unknown", "UpdatesPaused"))
	if by := cv.GetSpec().GetPause().GetBy(); by == "" || by == "another user" ||
		cv.GetSpec().GetPause().GetSince() == nil {
		t.Errorf("paused by %q: %v", by, cv.GetSpec().GetPause())
	}
	message := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted").GetMessage()
	if !strings.Contains(message, "until resumed: trade fair") || len(cv.GetStatus().GetHistory()) != 1 {
		t.Errorf("%q, history %v", message, cv.GetStatus().GetHistory())
	}
	// What is applied is kept all the same.
	if _, err := c.services.Delete(t.Context(), "ledger", "ledger", nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := c.services.Get(t.Context(), "ledger", "ledger"); err != nil {
			return err.Error()
		}
		return ""
	})
	pause(nil)
	c.version(waitsFor("archive", "ledger")) // run level 20
	pause(&updatev1.UpdatePause{Reason: "trade fair"})
	c.version(has("Progressing", "True", "UpdatesPaused"))
	stop := c.ready(operators...)
	c.version(func(cv *updatev1.ClusterVersion) string {
		if n := len(cv.GetStatus().GetProgress().GetWaits()); n > 0 {
			return fmt.Sprintf("%d manifests are waited for that had begun", n)
		}
		return has("Progressing", "True", "UpdatesPaused")(cv)
	})
	if c.holds("beacon", "1.1.0") {
		t.Error("a manifest of run level 25 was applied while updates were paused")
	}
	stop()
	c.stop()
	c.run() // a new process finds the pause
	c.version(has("Progressing", "True", "UpdatesPaused"))
	c.ready(operators...)
	if c.holds("beacon", "1.1.0") {
		t.Error("a manifest of run level 25 was applied by a new process while updates were paused")
	}
	pause(&updatev1.UpdatePause{Reason: "trade fair", Until: timestamppb.New(time.Now().Add(time.Second))})
	cv = c.version(completed("1.1.0"))
	if got := cv.GetStatus().GetDesired().GetImage(); !strings.HasSuffix(got, next[strings.Index(next, "@"):]) {
		t.Errorf("the cluster is at %s", got)
	}
}

// elsewhen returns the schedule of a window that is not open within the next hours, or that is open now for at least
// one more, for each day.
func elsewhen(open bool) *updatev1.MaintenanceWindow {
	begin := time.Now().UTC().Add(12 * time.Hour)
	if open {
		begin = time.Now().UTC()
	}
	return &updatev1.MaintenanceWindow{
		Metadata: &metav1.ObjectMeta{Name: "nights"}, Spec: &updatev1.MaintenanceWindowSpec{
			Schedule: fmt.Sprintf("0 %d * * *", begin.Hour()), Duration: "2h", AppliesTo: []string{"Updates"},
		},
	}
}

func TestAnUpdateWaitsForAMaintenanceWindow(t *testing.T) {
	c, _ := installed(t)
	windows := updatev1.NewMaintenanceWindowServiceClient(c.admin)
	_, err := windows.CreateMaintenanceWindow(t.Context(), &updatev1.CreateMaintenanceWindowRequest{
		MaintenanceWindow: &updatev1.MaintenanceWindow{
			Metadata: &metav1.ObjectMeta{Name: "nights"},
			Spec: &updatev1.MaintenanceWindowSpec{
				Schedule: "0 22 * * *", Duration: "25h",
				TimeZone: proto.String("Europe/Atlantis"),
			},
		},
	})
	if text := fmt.Sprint(err); !strings.Contains(text, "spec.duration") || !strings.Contains(text, "spec.timeZone") {
		t.Errorf("a window that makes no sense: %v", err)
	}
	w, err := windows.CreateMaintenanceWindow(t.Context(), &updatev1.CreateMaintenanceWindowRequest{
		MaintenanceWindow: elsewhen(false),
	})
	if err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		w, err := windows.GetMaintenanceWindow(t.Context(), &updatev1.GetMaintenanceWindowRequest{Name: "nights"})
		if c := object.FindCondition(w.GetStatus().GetConditions(), "Open"); err != nil || c.GetReason() != "Closed" {
			return fmt.Sprint(w.GetStatus(), err)
		}
		return ""
	})
	opens, err := maintenance.At(w, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want := "waits for maintenance window nights, which opens at " + opens.Opens.Format(time.RFC3339)
	c.ready(operators...)
	c.desire("1.1.0", "")
	cv := c.version(has("ReleaseAccepted", "Unknown", "MaintenanceWindow"))
	if message := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted").GetMessage(); !strings.Contains(
		message, want) || len(cv.GetStatus().GetHistory()) != 1 {
		t.Errorf("%q, history %v", message, cv.GetStatus().GetHistory())
	}
	run, err := updatev1.NewClusterVersionServiceClient(c.admin).PlanClusterVersionRun(t.Context(),
		&updatev1.PlanClusterVersionRunRequest{})
	if err != nil || len(run.GetHeldBack()) != 1 || !strings.Contains(run.GetHeldBack()[0].GetReason(), want) {
		t.Errorf("plan %v, %v", run.GetHeldBack(), err)
	}
	c.stop()
	c.run() // a new process finds the window
	c.version(has("ReleaseAccepted", "Unknown", "MaintenanceWindow"))
	// A window that opens lets it begin, and one that closes then does not stop it.
	windows = updatev1.NewMaintenanceWindowServiceClient(c.admin)
	change := func(to *updatev1.MaintenanceWindow) {
		t.Helper()
		if _, err := windows.UpdateMaintenanceWindow(t.Context(), &updatev1.UpdateMaintenanceWindowRequest{
			Name: "nights", MaintenanceWindow: to,
		}); err != nil {
			t.Fatal(err)
		}
	}
	change(elsewhen(true))
	c.version(func(cv *updatev1.ClusterVersion) string {
		if len(cv.GetStatus().GetHistory()) != 2 {
			return "it has not begun"
		}
		return ""
	})
	change(elsewhen(false))
	cv = c.version(completed("1.1.0"))
	if h := cv.GetStatus().GetHistory()[0]; strings.Contains(h.GetAcceptedRisks(), "MaintenanceWindow") {
		t.Errorf("the window was open, and the history has %q", h.GetAcceptedRisks())
	}
}

func TestAnUpdateThatWaitsForNoWindowIsRecorded(t *testing.T) {
	c, _ := installed(t)
	if _, err := updatev1.NewMaintenanceWindowServiceClient(c.admin).CreateMaintenanceWindow(t.Context(),
		&updatev1.CreateMaintenanceWindowRequest{MaintenanceWindow: elsewhen(false)}); err != nil {
		t.Fatal(err)
	}
	c.ready(operators...)
	c.desire("1.1.0", "")
	c.version(has("ReleaseAccepted", "Unknown", "MaintenanceWindow"))
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate.Waive = []*updatev1.WaivedCheck{{Name: "MaintenanceWindow", Reason: "CVE-2026-1"}}
	})
	cv := c.version(completed("1.1.0"))
	if h := cv.GetStatus().GetHistory()[0]; !strings.Contains(h.GetAcceptedRisks(),
		`MaintenanceWindow is waived: "CVE-2026-1"`) {
		t.Errorf("the history has %q", h.GetAcceptedRisks())
	}
}

func TestAnObjectThatIsNotManagedIsLeftAlone(t *testing.T) {
	c, _ := installed(t)
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.Overrides = []*updatev1.ComponentOverride{{
			Kind: "Deployment", Group: "apps", Namespace: "beacon", Name: "beacon",
			Unmanaged: proto.Bool(true),
		}}
	})
	c.version(has("Upgradeable", "False", ""))
	next := c.image("1.0.1", example("1.0.1"), "1.0.0")
	c.sign(next, c.key)
	c.desire("", next) // a patch goes through all the same
	c.ready(operators...)
	c.version(completed("1.0.1"))
	if c.seen("Deployment/beacon") {
		t.Error("the deployment was changed")
	}
}

func TestOnlyTheOrchestratorWritesWhatItOwns(t *testing.T) {
	c, _ := installed(t)
	versions, releases := updatev1.NewClusterVersionServiceClient(c.admin), updatev1.NewReleaseServiceClient(c.admin)
	cv := c.version(func(*updatev1.ClusterVersion) string { return "" })
	cv.Status.History = nil
	list, err := releases.ListReleases(t.Context(), &updatev1.ListReleasesRequest{})
	if err != nil || len(list.GetItems()) != 1 {
		t.Fatal(list, err)
	}
	r := list.GetItems()[0]
	if s := r.GetStatus(); s.GetVersion() != "1.0.0" || s.GetManifestCount() != 10 || len(s.GetManifests()) != 10 {
		t.Errorf("release is %v", r)
	}
	for name, call := range map[string]func() error{
		"status": func() error {
			_, err := versions.UpdateClusterVersionStatus(t.Context(), &updatev1.UpdateClusterVersionStatusRequest{
				Name: "version", ClusterVersion: cv,
			})
			return err
		},
		"deletion": func() error {
			_, err := versions.DeleteClusterVersion(t.Context(), &updatev1.DeleteClusterVersionRequest{Name: "version"})
			return err
		},
		"release": func() error {
			_, err := releases.DeleteRelease(t.Context(), &updatev1.DeleteReleaseRequest{Name: r.GetMetadata().GetName()})
			return err
		},
		"manifest": func() error {
			_, err := updatev1.NewManifestServiceClient(c.admin).ApplyManifest(t.Context(), &updatev1.ApplyManifestRequest{
				Name: "x", Manifest: &updatev1.Manifest{},
			})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlansAreAnsweredWithoutAnUpdate(t *testing.T) {
	c, next := installed(t)
	versions, releases := updatev1.NewClusterVersionServiceClient(c.admin), updatev1.NewReleaseServiceClient(c.admin)
	live, err := versions.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{WhyNot: "1.2.0"})
	if err != nil || live.GetVersion() != "1.0.0" || len(live.GetAvailableUpdates()) != 1 ||
		live.GetAvailableUpdates()[0].GetImage() != next || live.GetWhyNot() == "" {
		t.Errorf("live: %v, %v", live, err)
	}
	graph, err := structpb.NewStruct(map[string]any{
		"nodes": []any{
			map[string]any{"version": "3.0.0", "payload": "a@sha256:1"},
			map[string]any{"version": "3.0.1", "payload": "b@sha256:2"},
		},
		"edges": []any{[]any{0, 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	given, err := versions.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{
		Graph: graph, Version: "3.0.0", Channel: "c",
	})
	if err != nil || len(given.GetAvailableUpdates()) != 1 || given.GetAvailableUpdates()[0].GetVersion() != "3.0.1" {
		t.Errorf("given: %v, %v", given, err)
	}
	if _, err := versions.EvaluateClusterVersion(t.Context(), &updatev1.EvaluateClusterVersionRequest{
		RiskResults: map[string]string{"R": "maybe"},
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a result that is none: %v", err)
	}
	list, err := releases.ListReleases(t.Context(), &updatev1.ListReleasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	named, err := releases.PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{
		Name: list.GetItems()[0].GetMetadata().GetName(),
	})
	if err != nil {
		t.Fatal(err)
	}
	names, err := releases.PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{
		Manifests: list.GetItems()[0].GetStatus().GetManifests(),
	})
	sameOrder := slices.EqualFunc(named.GetSteps(), names.GetSteps(), func(a, b *updatev1.PlanReleaseResponse_Step) bool {
		return proto.Equal(a, b)
	})
	if err != nil || !sameOrder || len(named.GetSteps()) < 3 {
		t.Errorf("plans are %v and %v, %v", named, names, err)
	}
	if _, err := releases.PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{Name: "none"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("plan of a release that is not there: %v", err)
	}
}

// TestAnUpdateIsAppliedAsPlanned compares the order in which the manifests of a release reach their owners with the
// answer of PlanRelease.
func TestAnUpdateIsAppliedAsPlanned(t *testing.T) {
	c, next := installed(t)
	c.ready(operators...)
	keys := c.written()
	c.desire("1.1.0", "")
	c.version(completed("1.1.0"))
	image, err := release.Open(t.Context(), next, release.Places{Layouts: []string{c.layout}})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := release.Load(image)
	if err != nil {
		t.Fatal(err)
	}
	planned, err := updatev1.NewReleaseServiceClient(c.admin).PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{
		Manifests: payload.FileNames(),
	})
	if err != nil {
		t.Fatal(err)
	}
	step, chain := map[string]int{}, map[string]string{} // by the file of a manifest
	for i, s := range planned.GetSteps() {
		for j, c := range s.GetChains() {
			for _, file := range c.GetManifests() {
				step[file], chain[file] = i, fmt.Sprint(i, j)
			}
		}
	}
	files := map[string]string{} // by the key that is written, up to a hash
	for _, m := range payload.Manifests {
		files[strings.ToLower(m.Kind)+"s/"+m.Name] = m.File
		parts := []string{m.Kind, m.Group(), m.Namespace, m.Name}
		kept := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "-")
		files["manifests/"+strings.ToLower(kept)] = m.File
	}
	before, levels := "", map[int]bool{}
	for last := "machineconfigs/50-worker-release"; ; {
		key := <-keys
		file, ok := files[key]
		if i := strings.LastIndex(key, "-"); !ok && i > 0 {
			file, ok = files[key[:i]]
		}
		if ok && !strings.HasPrefix(key, "clusteroperators/") { // their owners write them, too
			if step[file] < step[before] || chain[file] == chain[before] && file < before {
				t.Errorf("%s was applied after %s; the plan is %v", file, before, planned)
			}
			before, levels[step[file]] = file, true
		}
		if key == last {
			break
		}
	}
	if len(levels) < 2 {
		t.Errorf("only steps %v of %v were seen", levels, planned)
	}
}

func TestTheExampleReleasesAreGood(t *testing.T) {
	c := start(t)
	owners := apply.Owners{}
	for pkg := range apply.Packages() {
		owners[pkg] = nil // no service is called
	}
	applier, err := apply.New(nil, owners,
		release.Cluster{Profile: release.DefaultProfile, FeatureSet: release.DefaultFeatureSet}, topology.Names())
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		digest, err := release.New(c.layout, release.Build{
			From:    "../../../deploy/examples/releases/" + version,
			Version: version,
		})
		if err != nil {
			t.Fatal(err)
		}
		image, err := release.Open(t.Context(), repository+"@"+digest, release.Places{Layouts: []string{c.layout}})
		if err != nil {
			t.Fatal(err)
		}
		payload, err := release.Load(image)
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := applier.Prepare(payload)
		if err != nil || len(tasks) != len(payload.Manifests) {
			t.Errorf("%s: %d of %d manifests count, %v", version, len(tasks), len(payload.Manifests), err)
		}
		var levels []string
		steps, unparsed := plan.TaskGraph(payload.FileNames(), nil, plan.Updating)
		for _, s := range steps {
			levels = append(levels, s.RunLevel)
		}
		if len(unparsed) > 0 || !slices.Contains(levels, "10") || !slices.Contains(levels, "20") {
			t.Errorf("%s: steps of run levels %v, %v", version, levels, unparsed)
		}
	}
}
