package kinds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"buf.build/go/protovalidate"
	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/admission/plan"
)

// controllers are custom admission controllers by the names of their webhooks, and the requests that they got.
type controllers struct {
	answers map[string]func(r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error)

	mu  sync.Mutex
	got []string // "webhook operation resource name"
	dry []bool
}

func (c *controllers) Review(_ context.Context, h plan.Hook, r *admissionv1.ReviewRequest) (
	*admissionv1.ReviewResponse, error,
) {
	c.mu.Lock()
	c.got = append(c.got, strings.Join([]string{h.GetName(), r.GetOperation(), r.GetResource(), r.GetName()}, " "))
	c.dry = append(c.dry, r.GetDryRun())
	c.mu.Unlock()
	return c.answers[h.GetName()](r)
}

// calls returns the calls since it was last called.
func (c *controllers) calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.got
	c.got, c.dry = nil, nil
	return out
}

type answer = func(r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error)

func allows(*admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	return &admissionv1.ReviewResponse{Allowed: true}, nil
}

func denies(why string) answer {
	return func(*admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
		return &admissionv1.ReviewResponse{Message: why}, nil
	}
}

func patches(patch string) answer {
	return func(*admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
		return &admissionv1.ReviewResponse{Allowed: true, Patch: []byte(patch)}, nil
	}
}

func silent(*admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	return nil, errors.New("connection refused")
}

// guarded returns tables with a webhook for every write of each name of answers: those that begin with "m" mutate.
func guarded(t *testing.T, answers map[string]answer) (*Tables, *controllers) {
	t.Helper()
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	c := &controllers{answers: answers}
	tab := New(Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{},
		MayBind: func(identity.Caller, string, string) bool { return false }, Policy: policy,
		Webhooks: c, WebhooksAllowed: []string{"https://hooks.example.com"},
	})
	for _, k := range tab.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name := range answers {
		if err := configure(t, tab, name, "Fail"); err != nil {
			t.Fatal(err)
		}
	}
	return tab, c
}

// configure stores the configuration of a webhook for all writes, or replaces it.
func configure(t *testing.T, tab *Tables, name, failurePolicy string) error {
	hooks := []*admissionregistrationv1.Webhook{{
		Name: name, SideEffects: "None", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: failurePolicy,
		ClientConfig: &admissionregistrationv1.WebhookClientConfig{Url: proto.String("https://hooks.example.com/")},
		Rules: []*admissionregistrationv1.RuleWithOperations{{
			Operations: []string{"*"}, ApiGroups: []string{"*"}, ApiVersions: []string{"*"}, Resources: []string{"*"},
		}},
	}}
	m, ctx := &metav1.ObjectMeta{Name: name}, byUser(t)
	var err error
	if strings.HasPrefix(name, "m") {
		c := &admissionregistrationv1.MutatingWebhookConfiguration{Metadata: m, Webhooks: hooks}
		if _, err = tab.MutatingWebhooks.Create(ctx, c); err != nil {
			_, err = tab.MutatingWebhooks.Update(ctx, c)
		}
		return err
	}
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{Metadata: m, Webhooks: hooks}
	if _, err = tab.ValidatingWebhooks.Create(ctx, c); err != nil {
		_, err = tab.ValidatingWebhooks.Update(ctx, c)
	}
	return err
}

func guardedPod(name string) *schedulingv1.Pod {
	return &schedulingv1.Pod{Metadata: meta(name), Spec: podSpec("")}
}

func TestMutatingWebhooksChangeAPodOneAfterTheOtherAndValidatingOnesSeeTheResult(t *testing.T) {
	tab, c := guarded(t, map[string]answer{
		"m1.example.com": patches(`[{"op":"add","path":"/spec/tolerations","value":[]},
			{"op":"add","path":"/metadata/labels","value":{"by":"m1"}}]`),
		"m2.example.com": func(r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
			if !strings.Contains(string(r.GetObject()), `"by":"m1"`) {
				return nil, fmt.Errorf("the object is %s", r.GetObject())
			}
			return patches(`[{"op":"replace","path":"/metadata/labels/by","value":"m2"},
				{"op":"add","path":"/spec/tolerations","value":
				[{"key":"dedicated","operator":"Equal","value":"groupName","effect":"NoSchedule"}]}]`)(r)
		},
		"v.example.com": func(r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
			// The pod as it will be stored: with the toleration of the webhook and those of all pods.
			if s := string(r.GetObject()); !strings.Contains(s, `"groupName"`) || !strings.Contains(s, "not-ready") ||
				r.GetUser() != "bob" {
				return denies(s)(r)
			}
			return allows(r)
		},
	})
	pod, err := tab.Pods.Create(byUser(t), guardedPod("web"))
	if err != nil || pod.GetMetadata().GetLabels()["by"] != "m2" || len(pod.GetSpec().GetTolerations()) != 3 {
		t.Fatalf("created %v, %v", pod, err)
	}
	want := []string{
		"m1.example.com CREATE pods web", "m2.example.com CREATE pods web", "v.example.com CREATE pods web",
	}
	if got := c.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

func TestTheRulesOfAdmissionApplyToWhatAWebhookMadeOfAPod(t *testing.T) {
	for patch, want := range map[string]string{
		`[{"op":"remove","path":"/spec/containers"}]`:                 "spec.containers",
		`[{"op":"replace","path":"/metadata/name","value":"other"}]`:  "changes more than labels",
		`[{"op":"replace","path":"/metadata/uid","value":"other"}]`:   "changes more than labels",
		`[{"op":"replace","path":"/status/phase","value":"Running"}]`: "changes more than labels",
		`[{"op":"replace","path":"/kind","value":"Node"}]`:            "changes more than labels",
		`[{"op":"add","path":"/spec/nonsense","value":1}]`:            "is not valid",
		`[{"op":"remove","path":"/spec/nodeName"}]`:                   "patch cannot be applied",
		`{}`: "patch cannot be applied",
		`[{"op":"add","path":"/spec/priorityClassName","value":"none-of-these"}]`: "spec.priorityClassName",
	} {
		tab, _ := guarded(t, map[string]answer{"m.example.com": patches(patch)})
		if _, err := tab.Pods.Create(byUser(t), guardedPod("web")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", patch, err, want)
		}
	}
}

func TestEveryWebhookThatRefusesAWriteIsNamed(t *testing.T) {
	tab, _ := guarded(t, map[string]answer{
		"v1.example.com": denies("not here"), "v2.example.com": denies("not\nnow"), "v3.example.com": silent,
	})
	_, err := tab.Pods.Create(byUser(t), guardedPod("web"))
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN || !strings.Contains(err.Error(),
		`admission webhook "v1.example.com" denied the request: not here; `+
			`admission webhook "v2.example.com" denied the request: not now`) {
		t.Errorf("error %v", err)
	}
}

func TestTheFailurePolicyDecidesOnAWriteWhoseWebhookDoesNotAnswer(t *testing.T) {
	for _, name := range []string{"m.example.com", "v.example.com"} {
		tab, _ := guarded(t, map[string]answer{name: silent})
		_, err := tab.Pods.Create(byUser(t), guardedPod("web"))
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION ||
			!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Fail: %v", err)
		}
		// Its repair is not subject to it.
		if err := configure(t, tab, name, "Ignore"); err != nil {
			t.Fatalf("the configuration cannot be changed: %v", err)
		}
		var warnings []string
		_, err = tab.Pods.Create(byUser(t), guardedPod("web"), resource.WriteOptions{Warn: func(text string) {
			warnings = append(warnings, text)
		}})
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], name) {
			t.Errorf("Ignore: %v, warnings %q", err, warnings)
		}
	}
}

func TestAPatchOfAValidatingWebhookIsAFailure(t *testing.T) {
	tab, _ := guarded(t, map[string]answer{"v.example.com": patches("[]")})
	if _, err := tab.Pods.Create(byUser(t), guardedPod("web")); err == nil || !strings.Contains(err.Error(), "a patch") {
		t.Errorf("error %v", err)
	}
}

func TestWebhooksAreCalledForAllCreationsAndForTheChangesOfUsers(t *testing.T) {
	tab, c := guarded(t, map[string]answer{"v.example.com": allows})
	users, service := byUser(t), identity.WithCaller(t.Context(), identity.Caller{
		User: identity.ServiceUser("machine-api"), Groups: []string{identity.GroupServices},
	})
	label := func(p *schedulingv1.Pod) error {
		p.Metadata.Labels = map[string]string{"n": p.GetMetadata().GetLabels()["n"] + "x"}
		return nil
	}
	key := object.Key{Namespace: "default", Name: "web"}
	dry := resource.WriteOptions{DryRun: true}
	for _, tt := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"a user's dry run", func() error {
			_, err := tab.Pods.Create(users, guardedPod("web"), dry)
			if dry := c.dry; len(dry) != 1 || !dry[0] {
				t.Errorf("dry run in the requests: %v, want true", dry)
			}
			return err
		}, []string{"v.example.com CREATE pods web"}},
		{"a creation of our own", func() error {
			_, err := tab.Pods.Create(t.Context(), guardedPod("web"))
			return err
		}, []string{"v.example.com CREATE pods web"}},
		{"a user's change", func() error {
			_, err := tab.Pods.Modify(users, key, label)
			return err
		}, []string{"v.example.com UPDATE pods web"}},
		{"a change of our own", func() error {
			_, err := tab.Pods.Modify(t.Context(), key, func(p *schedulingv1.Pod) error { return tab.Bind(p, "", "node-1") })
			return err
		}, nil},
		{"a change of a service", func() error {
			_, err := tab.Pods.Modify(service, key, label)
			return err
		}, nil},
		{"a user's dry run of a deletion", func() error {
			_, err := tab.Pods.Delete(users, "default", "web", nil, dry)
			return err
		}, []string{"v.example.com DELETE pods web"}},
		{"an eviction of our own", func() error {
			_, err := tab.Pods.Delete(users, "default", "web", nil, resource.WriteOptions{Own: true})
			return err
		}, nil},
		{"a configuration", func() error {
			_, err := tab.AdmissionConfigs.Create(users, &schedulingv1.AdmissionConfig{})
			return err
		}, nil},
	} {
		if err := tt.do(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := c.calls(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: calls %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestTheWebhooksOfABatchAreCalledConcurrently(t *testing.T) {
	const size = 20
	var arrived sync.WaitGroup
	arrived.Add(size)
	tab, _ := guarded(t, map[string]answer{
		"v.example.com": func(r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
			arrived.Done()
			arrived.Wait() // for all the others: one call after the other would never end
			if r.GetName() == "p-3" {
				return denies("not this one")(r)
			}
			return allows(r)
		},
	})
	var pods []*schedulingv1.Pod
	for i := range size {
		pods = append(pods, guardedPod(fmt.Sprint("p-", i)))
	}
	for i, w := range tab.Pods.CreateAll(t.Context(), pods) {
		if (w.Err != nil) != (i == 3) || w.Err == nil && w.Object.GetMetadata().GetName() != pods[i].GetMetadata().GetName() {
			t.Errorf("pod %d: %v, %v", i, w.Object, w.Err)
		}
	}
}
