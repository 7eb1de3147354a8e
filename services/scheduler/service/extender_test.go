package service

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// licences is an extender that counts licences, which the nodes do not have and which are on node-2 alone. It hangs on
// request.
type licences struct {
	mu    sync.Mutex
	total int
	given map[string]bool // by pod
	hangs chan struct{}   // closed once it answers again; nil while it answers
}

func (l *licences) hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangs = make(chan struct{})
}

func (l *licences) answerAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.hangs)
	l.hangs = nil
}

func (l *licences) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	l.mu.Lock()
	hangs := l.hangs
	l.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
		return // without an answer
	}
	var in struct {
		Pod       struct{ Metadata struct{ Name string } }
		NodeNames []string
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/rank") {
		_, _ = io.WriteString(w, `[]`)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left, failed := []string{}, map[string]string{}
	for _, n := range in.NodeNames {
		switch {
		case n != "node-2":
			failed[n] = "no dongle"
		case len(l.given) >= l.total && !l.given[in.Pod.Metadata.Name]:
			failed[n] = "all licences are given"
		default:
			left = append(left, n)
		}
	}
	if len(left) > 0 && strings.HasPrefix(r.URL.Path, "/live") {
		l.given[in.Pod.Metadata.Name] = true
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"nodenames": left, "failedNodes": failed})
}

// serveExtender runs an extender at an address that one may have until the test ends. It returns its URL and its
// authority.
func serveExtender(t *testing.T, h http.Handler) (url string, cert []byte) {
	t.Helper()
	at := hostAddress(t)
	certFile, keyFile, cert := certificate(t, at)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "https://" + l.Addr().String(), cert
}

func extenderPolicy(t *testing.T, name string, fields map[string]any) *schedulingv1.Policy {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	out := &schedulingv1.Policy{Extenders: []*structpb.Struct{s}}
	out.Metadata = newPod(name, "1m").GetMetadata()
	out.Metadata.Namespace, out.Metadata.Labels = "", nil
	return out
}

func licensed(name string) *schedulingv1.Pod {
	pod := newPod(name, "1m")
	pod.Spec.Containers[0].Resources.Requests["example.com/licence"] = structpb.NewStringValue("1")
	return pod
}

func TestAnExtenderOfThePolicyDecidesOnThePodsThatAskForItsResource(t *testing.T) {
	ext := &licences{total: 2, given: map[string]bool{}}
	url, cert := serveExtender(t, ext)
	c := start(t)
	c.stop()
	c.webhooks = []string{url}
	c.startScheduler()
	for i := range 3 {
		c.addNode(fmt.Sprintf("node-%d", i+1), "4")
	}
	policies := schedulingv1.NewPolicyServiceClient(c.admin())
	fields := map[string]any{
		"urlPrefix": url + "/live", "filterVerb": "filter", "prioritizeVerb": "rank", "weight": 1, "nodeCacheCapable": true,
		"httpTimeout": "2s", "tlsConfig": map[string]any{"caData": base64.StdEncoding.EncodeToString(cert)},
		"managedResources": []any{map[string]any{"name": "example.com/licence", "ignoredByScheduler": true}},
	}
	elsewhere := extenderPolicy(t, "default", fields)
	elsewhere.Extenders[0].Fields["urlPrefix"] = structpb.NewStringValue("https://198.51.100.1")
	if _, err := policies.CreatePolicy(t.Context(), &schedulingv1.CreatePolicyRequest{Policy: elsewhere}); status.Code(
		err) != codes.InvalidArgument || !strings.Contains(err.Error(), "extenders[0].urlPrefix") {
		t.Errorf("an address that is not allowed: %v", err)
	}
	stored, err := policies.CreatePolicy(t.Context(), &schedulingv1.CreatePolicyRequest{
		Policy: extenderPolicy(t, "default", fields),
	})
	if err != nil || !object.IsTrue(stored.GetStatus().GetConditions(), "InForce") {
		t.Fatalf("%v, %v", stored, err)
	}
	pods := c.pods()
	for _, name := range []string{"one", "two"} {
		c.create(pods, licensed(name))
		if pod := c.awaitPod(pods, name, bound); pod.GetSpec().GetNodeName() != "node-2" {
			t.Errorf("%s is on %s", name, pod.GetSpec().GetNodeName())
		}
	}
	c.create(pods, licensed("three"))
	c.awaitPod(pods, "three", says("1 node(s) were rejected by the extender "+url+"/live (all licences are given)"))
	e, err := pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Namespace: "default", Name: "three"})
	if err != nil || len(e.GetExtenders()) != 1 || !e.GetExtenders()[0].GetAsked() ||
		!strings.Contains(e.GetExtenders()[0].GetMessage(), "leaves 0 of 3 nodes") || e.GetComputedFrom() != "Leader" ||
		e.GetPending().GetTries() < 1 || len(e.GetPending().GetObstacles()) != 2 {
		t.Errorf("explain: %v, %v", e, err)
	}
	e, err = pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{
		Namespace: "default", Name: "three", SummaryOnly: true,
	})
	if err != nil || len(e.GetNodes()) > 0 || e.GetNodeCount() != 3 || len(e.GetExtenders()) != 1 ||
		e.GetExtenders()[0].GetAsked() || e.GetPending() == nil {
		t.Errorf("summary: %v, %v", e, err)
	}
	e, err = pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Namespace: "default", Name: "one"})
	scores := e.GetPlacement().GetChosen().GetScores()
	if err != nil || e.GetPlacement().GetFittingCount() != 1 || len(scores) == 0 {
		t.Errorf("the placement of a pod that an extender decided on: %v, %v", e.GetPlacement(), err)
	}

	// While it hangs, it holds up no other pod, and those that need it say so.
	ext.hang()
	c.create(pods, licensed("four"))
	for i := range 20 {
		name := fmt.Sprintf("plain-%d", i)
		c.create(pods, newPod(name, "1m"))
		c.awaitPod(pods, name, bound)
	}
	c.awaitPod(pods, "four", says("The extender "+url+"/live decides on this pod and did not answer: "))
	ext.mu.Lock()
	ext.total = 4
	ext.mu.Unlock()
	ext.answerAgain()
	for _, name := range []string{"three", "four"} {
		if pod := c.awaitPod(pods, name, bound); pod.GetSpec().GetNodeName() != "node-2" {
			t.Errorf("%s is on %s", name, pod.GetSpec().GetNodeName())
		}
	}

	// The administrator allows it no longer.
	c.stop()
	c.webhooks = nil
	c.startScheduler()
	pods = c.pods()
	c.create(pods, licensed("five"))
	c.awaitPod(pods, "five", says("is not allowed: see --webhook-allow of scheduler"))
	servetest.Await(t, func() string {
		p, err := schedulingv1.NewPolicyServiceClient(c.admin()).GetPolicy(t.Context(),
			&schedulingv1.GetPolicyRequest{Name: "default"})
		if err != nil {
			return err.Error()
		}
		if object.IsTrue(p.GetStatus().GetConditions(), "InForce") {
			return "it says that it is in force"
		}
		return ""
	})
}

// says returns a condition that a pod is not placed, for a reason that contains a text.
func says(text string) func(*schedulingv1.Pod) bool {
	return func(pod *schedulingv1.Pod) bool {
		for _, c := range pod.GetStatus().GetConditions() {
			if c.GetType() == "PodScheduled" && c.GetStatus() == "False" && strings.Contains(c.GetMessage(), text) {
				return true
			}
		}
		return false
	}
}
