package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/webhook"
)

const (
	everySubresource = "*/*"
	// grpcScheme is the scheme of webhooks that are called over gRPC.
	grpcScheme = "grpcs://"
)

// Check returns what is wrong with webhooks, below the path webhooks. reviewed are the kinds whose writes webhooks are
// called for; allowed are the addresses that an administrator allows, as webhook.Allowed describes them. warnings name
// rules that include other kinds, and time-outs that are longer than a write.
func Check(hooks []*admissionregistrationv1.Webhook, reviewed []*metav1.ResourceType, allowed []string) (
	fields []object.Fault, warnings []string,
) {
	names := map[string]bool{}
	for i, h := range hooks {
		at := fmt.Sprintf("webhooks[%d]", i)
		bad := func(field, format string, args ...any) {
			fields = append(fields, object.Faultf(at+field, format, args...))
		}
		for _, why := range validation.IsDNS1123Subdomain(h.GetName()) {
			bad(".name", "%s", why)
		}
		if names[h.GetName()] {
			bad(".name", "there is another webhook %q", h.GetName())
		}
		names[h.GetName()] = true
		if !slices.Contains(h.GetAdmissionReviewVersions(), "v1") {
			bad(".admissionReviewVersions", `must contain "v1", the version that is sent`)
		}
		if p := h.GetReinvocationPolicy(); p != "" && p != "Never" {
			bad(".reinvocationPolicy", "is not in force: must be Never, not %q", p)
		}
		if len(h.GetMatchConditions()) > 0 {
			bad(".matchConditions", "is not in force: the webhook would be called for other writes too")
		}
		if h.GetTimeoutSeconds() > 5 {
			warnings = append(warnings, at+
				".timeoutSeconds: a write has 10 s in all, so a call waits for at most half of what is left of it")
		}
		for _, s := range []struct {
			field string
			of    *metav1.LabelSelector
		}{{".namespaceSelector", h.GetNamespaceSelector()}, {".objectSelector", h.GetObjectSelector()}} {
			_, wrong := object.LabelSelector(s.of, at+s.field)
			fields = append(fields, wrong...)
		}
		fields = append(fields, checkClient(at+".clientConfig", h.GetClientConfig(), allowed)...)
		for j, r := range h.GetRules() {
			wrong, more := checkRule(fmt.Sprintf("%s.rules[%d]", at, j), r, reviewed)
			fields, warnings = append(fields, wrong...), append(warnings, more...)
		}
	}
	return fields, warnings
}

func checkClient(at string, c *admissionregistrationv1.WebhookClientConfig, allowed []string) []object.Fault {
	if c.GetService() != nil {
		return []object.Fault{object.Faultf(at+".service",
			"is not in force: there is no service network; give the address as %s.url", at)}
	}
	if why := addressFault(c.GetUrl()); why != "" {
		return []object.Fault{object.Faultf(at+".url", "%s", why)}
	}
	if !Allowed(c.GetUrl(), allowed) {
		return []object.Fault{object.Faultf(at+".url",
			"%q is not allowed: an administrator allows addresses with --set scheduler.webhook-allow=URL of windlass up",
			c.GetUrl())}
	}
	return nil
}

// addressFault returns why an address cannot be that of a webhook; empty if it can.
func addressFault(text string) string {
	target, overGRPC := GRPCTarget(text)
	if !overGRPC {
		return webhook.URLFault(text)
	}
	if strings.ContainsAny(target, "/?") {
		return "must not have a path: grpcs://host:port"
	}
	return webhook.URLFault("https://" + target)
}

// GRPCTarget returns the host and port of a webhook that is called over gRPC; false if it is called over https.
func GRPCTarget(text string) (string, bool) { return strings.CutPrefix(text, grpcScheme) }

// Allowed reports whether the address of a webhook is one that allowed addresses allow. "https://host:port" allows
// "grpcs://host:port" too.
func Allowed(text string, allowed []string) bool {
	if target, overGRPC := GRPCTarget(text); overGRPC {
		text = "https://" + target
	}
	return webhook.Allowed(text, allowed)
}

// checkRule refuses a rule that names something that webhooks are not called for, which would seem to be guarded and
// is not, and warns of one that includes such kinds.
func checkRule(at string, r *admissionregistrationv1.RuleWithOperations, reviewed []*metav1.ResourceType) (
	fields []object.Fault, warnings []string,
) {
	if i := slices.Index(r.GetOperations(), "CONNECT"); i >= 0 {
		fields = append(fields, object.Faultf(fmt.Sprintf("%s.operations[%d]", at, i),
			"is not in force: webhooks are called for CREATE, UPDATE and DELETE"))
	}
	for i, name := range r.GetResources() {
		if name == every || name == everySubresource {
			warnings = append(warnings, fmt.Sprintf("%s.resources[%d]: the webhook is called for these kinds only: %s", at, i,
				plurals(reviewed)))
			continue
		}
		if !slices.ContainsFunc(reviewed, func(t *metav1.ResourceType) bool {
			return t.GetPlural() == name && contains(r.GetApiGroups(), t.GetGroup())
		}) {
			fields = append(fields, object.Faultf(fmt.Sprintf("%s.resources[%d]", at, i),
				"%q of the rule's groups is not in force: webhooks are called for %s", name, plurals(reviewed)))
		}
	}
	return fields, warnings
}

func plurals(reviewed []*metav1.ResourceType) string {
	names := make([]string, len(reviewed))
	for i, t := range reviewed {
		names[i] = t.GetPlural()
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
