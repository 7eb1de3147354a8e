package plan

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// hook returns a valid webhook for creations of pods.
func hook(name string) *admissionregistrationv1.Webhook {
	return &admissionregistrationv1.Webhook{
		Name: name, SideEffects: "None", AdmissionReviewVersions: []string{"v1"},
		ClientConfig: &admissionregistrationv1.WebhookClientConfig{Url: proto.String("https://hooks.example.com/a")},
		Rules: []*admissionregistrationv1.RuleWithOperations{{
			Operations: []string{"CREATE"}, ApiGroups: []string{""}, ApiVersions: []string{"v1"}, Resources: []string{"pods"},
		}},
	}
}

func configuration(name string, hooks ...*admissionregistrationv1.Webhook,
) *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{Metadata: &metav1.ObjectMeta{Name: name}, Webhooks: hooks}
}

func pod(labels map[string]string) *schedulingv1.Pod {
	return &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Namespace: "web", Name: "p", Labels: labels}}
}

func typeOf(o object.Object) *metav1.ResourceType {
	return object.TypeOf(o.ProtoReflect().Descriptor())
}

func creation() Write {
	return Write{Type: typeOf(&schedulingv1.Pod{}), Operation: Create, New: pod(nil), Namespace: &metav1.ObjectMeta{
		Name: "web", Labels: map[string]string{"team": "a"},
	}}
}

func TestWebhooksAreCalledInTheOrderOfTheirConfigurations(t *testing.T) {
	var got []string
	for _, h := range Called([]*admissionregistrationv1.MutatingWebhookConfiguration{
		configuration("z", hook("z.example.com")), configuration("a", hook("y.example.com"), hook("x.example.com")),
	}, creation()) {
		got = append(got, h.Configuration+"/"+h.GetName())
	}
	if want := []string{"a/y.example.com", "a/x.example.com", "z/z.example.com"}; !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
}

func TestAWebhookIsCalledForTheWritesThatItsRulesAndSelectorsName(t *testing.T) {
	selector := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	for _, tt := range []struct {
		name   string
		change func(h *admissionregistrationv1.Webhook, w *Write)
		want   bool
	}{
		{"a creation of a pod", func(*admissionregistrationv1.Webhook, *Write) {}, true},
		{"no rule", func(h *admissionregistrationv1.Webhook, _ *Write) { h.Rules = nil }, false},
		{"another operation", func(_ *admissionregistrationv1.Webhook, w *Write) { w.Operation = Update }, false},
		{"every operation", func(h *admissionregistrationv1.Webhook, w *Write) {
			w.Operation, h.Rules[0].Operations = Delete, []string{"*"}
		}, true},
		{"another group", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.Rules[0].ApiGroups = []string{"apps"}
		}, false},
		{"another version", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.Rules[0].ApiVersions = []string{"v2"}
		}, false},
		{"everything", func(h *admissionregistrationv1.Webhook, _ *Write) {
			r := h.Rules[0]
			r.ApiGroups, r.ApiVersions, r.Resources, r.Scope = []string{"*"}, []string{"*"}, []string{"*/*"}, "*"
		}, true},
		{"the second rule", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.Rules = append([]*admissionregistrationv1.RuleWithOperations{{}}, h.Rules...)
		}, true},
		{"cluster scope", func(h *admissionregistrationv1.Webhook, _ *Write) { h.Rules[0].Scope = "Cluster" }, false},
		{"namespaced scope", func(h *admissionregistrationv1.Webhook, _ *Write) { h.Rules[0].Scope = "Namespaced" }, true},
		{"a label of the namespace", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.NamespaceSelector = selector("team", "a")
		}, true},
		{"another label of the namespace", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.NamespaceSelector = selector("team", "b")
		}, false},
		{"the name of the namespace", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.NamespaceSelector = selector(nameLabel, "web")
		}, true},
		{"no namespace", func(h *admissionregistrationv1.Webhook, w *Write) {
			h.NamespaceSelector, w.Namespace = selector("team", "b"), nil
		}, true},
		{"empty selectors", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.NamespaceSelector, h.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
		}, true},
		{"a label that the object lacks", func(h *admissionregistrationv1.Webhook, _ *Write) {
			h.ObjectSelector = selector("guard", "yes")
		}, false},
		{"a label that the object loses", func(h *admissionregistrationv1.Webhook, w *Write) {
			h.ObjectSelector, h.Rules[0].Operations = selector("guard", "yes"), []string{Update}
			w.Operation, w.Old = Update, pod(map[string]string{"guard": "yes"})
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, w := hook("a.example.com"), creation()
			tt.change(h, &w)
			got := Called([]*admissionregistrationv1.MutatingWebhookConfiguration{configuration("a", h)}, w)
			if (len(got) == 1) != tt.want {
				t.Errorf("called %v, want %t", got, tt.want)
			}
		})
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	reviewed := []*metav1.ResourceType{typeOf(&schedulingv1.Pod{}), typeOf(&schedulingv1.Deployment{})}
	allowed := []string{"https://hooks.example.com", "https://grpc.example.com:8443"}
	for _, tt := range []struct {
		name   string
		change func(h *admissionregistrationv1.Webhook)
		want   string // path and a part of the description; empty means accepted
	}{
		{"a valid one", func(*admissionregistrationv1.Webhook) {}, ""},
		{"a name that is none", func(h *admissionregistrationv1.Webhook) { h.Name = "A_b" }, "webhooks[0].name"},
		{"no address", func(h *admissionregistrationv1.Webhook) { h.ClientConfig.Url = nil }, "webhooks[0].clientConfig.url"},
		{"http", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Url = proto.String("http://hooks.example.com/a")
		}, "webhooks[0].clientConfig.url: must begin with https://"},
		{"an address that is not allowed", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Url = proto.String("https://other.example.com/a")
		}, "webhooks[0].clientConfig.url: \"https://other.example.com/a\" is not allowed"},
		{"over gRPC", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Url = proto.String("grpcs://grpc.example.com:8443")
		}, ""},
		{"over gRPC at an address that is not allowed", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Url = proto.String("grpcs://grpc.example.com:9443")
		}, "is not allowed"},
		{"over gRPC with a path", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Url = proto.String("grpcs://grpc.example.com:8443/a")
		}, "must not have a path"},
		{"a service", func(h *admissionregistrationv1.Webhook) {
			h.ClientConfig.Service = &admissionregistrationv1.ServiceReference{Name: "a"}
		}, "webhooks[0].clientConfig.service: is not in force"},
		{"another version", func(h *admissionregistrationv1.Webhook) {
			h.AdmissionReviewVersions = []string{"v1beta1"}
		}, "webhooks[0].admissionReviewVersions"},
		{"reinvocation", func(h *admissionregistrationv1.Webhook) {
			h.ReinvocationPolicy = "IfNeeded"
		}, "webhooks[0].reinvocationPolicy: is not in force"},
		{"conditions in CEL", func(h *admissionregistrationv1.Webhook) {
			h.MatchConditions = []*admissionregistrationv1.MatchCondition{{Name: "a"}}
		}, "webhooks[0].matchConditions: is not in force"},
		{"a bad selector", func(h *admissionregistrationv1.Webhook) {
			h.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []*metav1.LabelSelectorRequirement{
				{Key: "a", Operator: "Like"},
			}}
		}, "webhooks[0].objectSelector"},
		{"calls of exec", func(h *admissionregistrationv1.Webhook) {
			h.Rules[0].Operations = []string{"CREATE", "CONNECT"}
		}, "webhooks[0].rules[0].operations[1]: is not in force"},
		{"a kind without webhooks", func(h *admissionregistrationv1.Webhook) {
			h.Rules[0].Resources = []string{"pods", "nodes"}
		}, "webhooks[0].rules[0].resources[1]: \"nodes\""},
		{"a part of a kind", func(h *admissionregistrationv1.Webhook) {
			h.Rules[0].Resources = []string{"pods/status"}
		}, "webhooks[0].rules[0].resources[0]"},
		{"a kind of another group", func(h *admissionregistrationv1.Webhook) {
			h.Rules[0].Resources = []string{"deployments"}
		}, "webhooks[0].rules[0].resources[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := hook("a.example.com")
			tt.change(h)
			fields, _ := Check([]*admissionregistrationv1.Webhook{h}, reviewed, allowed)
			if tt.want == "" && len(fields) > 0 || tt.want != "" &&
				(len(fields) != 1 || !strings.Contains(fields[0].String(), tt.want)) {
				t.Errorf("%v, want %q", fields, tt.want)
			}
		})
	}
	if fields, _ := Check([]*admissionregistrationv1.Webhook{hook("a.b"), hook("a.b")}, reviewed,
		allowed); len(fields) != 1 ||
		fields[0].Path != "webhooks[1].name" {
		t.Errorf("two webhooks of one name: %v", fields)
	}
	all := hook("a.b")
	all.Rules[0].Resources = []string{"*"}
	fields, warnings := Check([]*admissionregistrationv1.Webhook{all}, reviewed, allowed)
	if len(fields) > 0 || len(warnings) != 1 || !strings.HasSuffix(warnings[0], ": deployments, pods") {
		t.Errorf("every kind: %v, %q", fields, warnings)
	}
}

func TestATimeOutLongerThanAWriteIsWarnedOf(t *testing.T) {
	reviewed := []*metav1.ResourceType{typeOf(&schedulingv1.Pod{})}
	for seconds, want := range map[int32]int{5: 0, 6: 1, 30: 1} {
		h := hook("a.example.com")
		h.TimeoutSeconds = proto.Int32(seconds)
		fields, warnings := Check([]*admissionregistrationv1.Webhook{h}, reviewed, []string{"https://hooks.example.com"})
		if len(fields) > 0 || len(warnings) != want {
			t.Errorf("%d s: %v, %q", seconds, fields, warnings)
		}
	}
}
