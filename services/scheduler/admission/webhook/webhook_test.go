package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/admission/plan"
)

// serve returns a webhook on loopback, and a caller that may reach it.
func serve(t *testing.T, h http.Handler) (*Caller, plan.Hook) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	c := &Caller{Allowed: []string{server.URL}, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	c.reach = func(netip.Addr) error { return nil }
	return c, plan.Hook{
		Kind: "ValidatingWebhookConfiguration", Configuration: "guard", Version: "1",
		Webhook: &admissionregistrationv1.Webhook{
			Name: "guard.example.com", TimeoutSeconds: proto.Int32(1),
			ClientConfig: &admissionregistrationv1.WebhookClientConfig{
				Url:      proto.String(server.URL + "/validate"),
				CaBundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
		},
	}
}

func request() *admissionv1.ReviewRequest {
	return &admissionv1.ReviewRequest{
		Uid: "u-1", Version: "v1", Kind: "Pod", Resource: "pods", Name: "web", Namespace: "default", Operation: "CREATE",
		User: "bob", Groups: []string{"system:authenticated"}, Object: []byte(`{"kind":"Pod"}`), DryRun: true,
	}
}

// answer is a handler that answers with a response to u-1, whose further fields are given in JSON.
func answer(fields string) http.HandlerFunc {
	return text(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u-1",` + fields + `}}`)
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func TestAWebhookGetsAnAdmissionReview(t *testing.T) {
	c, h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var got map[string]any
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		want := map[string]any{}
		if err := json.Unmarshal([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{
			"uid":"u-1","kind":{"group":"","version":"v1","kind":"Pod"},
			"resource":{"group":"","version":"v1","resource":"pods"},
			"requestKind":{"group":"","version":"v1","kind":"Pod"},
			"requestResource":{"group":"","version":"v1","resource":"pods"},
			"name":"web","namespace":"default","operation":"CREATE",
			"userInfo":{"username":"bob","groups":["system:authenticated"]},
			"object":{"kind":"Pod"},"oldObject":null,"dryRun":true,
			"options":{"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions","dryRun":["All"]}}}`), &want); err != nil {
			t.Error(err)
		}
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if string(a) != string(b) {
			t.Errorf("sent\n%s, want\n%s", a, b)
		}
		if r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) > 0 || r.URL.Path != "/validate" ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("headers %v to %s", r.Header, r.URL)
		}
		answer(`"allowed":true,"patchType":"JSONPatch","patch":"W10=","warnings":["old"]`)(w, r)
	}))
	a, err := c.Review(t.Context(), h, request())
	if err != nil || !a.GetAllowed() || string(a.GetPatch()) != "[]" || len(a.GetWarnings()) != 1 {
		t.Errorf("answer %v, %v", a, err)
	}
}

func TestARefusalHasTheMessageOfTheWebhook(t *testing.T) {
	for fields, want := range map[string]string{
		`"allowed":false,"status":{"code":403,"message":"not here"}`: "not here",
		`"allowed":false,"status":{"reason":"Forbidden"}`:            "Forbidden",
		`"allowed":false`: "",
	} {
		c, h := serve(t, answer(fields))
		if a, err := c.Review(t.Context(), h, request()); err != nil || a.GetAllowed() || a.GetMessage() != want {
			t.Errorf("%s: %v, %v", fields, a, err)
		}
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/validate" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "302"},
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			"502",
		},
		"no JSON":               {text("<html>"), "invalid character"},
		"another version":       {text(`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}`), "v1beta1"},
		"no response":           {text(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`), "response"},
		"another request":       {answer(`"allowed":true,"uid":"u-2"`), "u-2"},
		"another kind of patch": {answer(`"allowed":true,"patch":"e30=","patchType":"Merge"`), "patchType"},
		"a patch without one":   {answer(`"allowed":true,"patchType":"JSONPatch"`), "response.patch"},
		"too long":              {text(strings.Repeat(" ", mostAnswer+1)), "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			c, h := serve(t, tt.answer)
			h.TimeoutSeconds = proto.Int32(30)
			if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// A write may have less time than its webhook. What a webhook that hangs leaves of it suffices to go on without it.
func TestAWebhookThatHangsLeavesTimeForTheWrite(t *testing.T) {
	c, h := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the caller left
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}))
	h.TimeoutSeconds = proto.Int32(30)
	for n := range reach.FailuresInRow {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		_, err := c.Review(ctx, h, request())
		if err == nil || !strings.Contains(err.Error(), "did not answer within 2s") || ctx.Err() != nil {
			t.Errorf("call %d: %v, and its caller %v", n, err, ctx.Err())
		}
		cancel()
	}
	if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), "not called") {
		t.Errorf("after %d calls that hung: %v", reach.FailuresInRow, err)
	}
}

func TestAWebhookOnTheHostItselfOrNotAllowedIsNotReached(t *testing.T) {
	c, h := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	c.reach = nil
	if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("on loopback: %v", err)
	}
	over := plan.Hook{Kind: h.Kind, Configuration: "grpc", Webhook: proto.CloneOf(h.Webhook)}
	over.ClientConfig.Url = proto.String("grpcs" + strings.TrimPrefix(c.Allowed[0], "https"))
	if _, err := c.Review(t.Context(), over, request()); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("over gRPC on loopback: %v", err)
	}
	c.Allowed = []string{"https://other.example.com"}
	if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), "is not allowed") {
		t.Errorf("not allowed: %v", err)
	}
}

func TestAServerOfAnUnknownAuthorityIsNotCalled(t *testing.T) {
	c, h := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	h.ClientConfig.CaBundle = nil
	if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v", err)
	}
}

func TestAWebhookThatHangsIsCalledLessOftenUntilItsConfigurationChanges(t *testing.T) {
	var calls atomic.Int32
	hang := make(chan struct{})
	c, h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= reach.FailuresInRow {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler) // an answer now could still reach the caller
		}
		answer(`"allowed":true`)(w, r)
	}))
	defer close(hang)
	now := time.Now()
	c.Now = func() time.Time { return now }
	errs := make(chan error, reach.FailuresInRow)
	for range reach.FailuresInRow {
		go func() {
			_, err := c.Review(t.Context(), h, request())
			errs <- err
		}()
	}
	for range reach.FailuresInRow {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "did not answer within 1s") {
			t.Errorf("a call that hangs: %v", err)
		}
	}
	if _, err := c.Review(t.Context(), h, request()); err == nil || !strings.Contains(err.Error(), "not called") ||
		calls.Load() != reach.FailuresInRow {
		t.Errorf("after that: %v, %d calls", err, calls.Load())
	}
	repaired := h
	repaired.Version = "2"
	if _, err := c.Review(t.Context(), repaired, request()); err != nil {
		t.Errorf("with a new configuration: %v", err)
	}
}

type controller struct {
	admissionv1.UnimplementedAdmissionServiceServer
	t *testing.T
}

func (c controller) Review(ctx context.Context, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("secret")) > 0 {
		c.t.Error("metadata of the caller was passed on")
	}
	return &admissionv1.ReviewResponse{Allowed: r.GetName() == "web", Message: "no " + r.GetUid()}, nil
}

func TestAWebhookMayBeAServiceOverGRPC(t *testing.T) {
	server := grpc.NewServer()
	admissionv1.RegisterAdmissionServiceServer(server, controller{t: t})
	c, h := serve(t, server)
	h.ClientConfig.Url = proto.String("grpcs" + strings.TrimPrefix(c.Allowed[0], "https"))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "secret", "s")
	if a, err := c.Review(ctx, h, request()); err != nil || !a.GetAllowed() {
		t.Fatalf("answer %v, %v", a, err)
	}
	other := request()
	other.Name = "db"
	if a, err := c.Review(ctx, h, other); err != nil || a.GetAllowed() || a.GetMessage() != "no u-1" {
		t.Errorf("answer %v, %v", a, err)
	}
}
