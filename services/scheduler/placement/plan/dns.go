package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Bounds of dnsConfig. Source: Kubernetes, pkg/apis/core/validation.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchText  = 2048
)

// dnsFaults returns what is wrong with how a pod resolves names. Source: Kubernetes, pkg/apis/core/validation.
func dnsFaults(path string, spec *schedulingv1.PodSpec) (bad []object.Fault) {
	policies := []string{"", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"}
	if p := spec.GetDnsPolicy(); !slices.Contains(policies, p) {
		bad = append(bad, object.Faultf(path+".dnsPolicy", "must be %s, not %q", strings.Join(policies[1:], ", "), p))
	}
	at := path + ".dnsConfig"
	config := spec.GetDnsConfig().GetFields()
	bad = append(bad, otherFields(at, config, "nameservers", "searches", "options")...)
	servers, faults := textsOf(at+".nameservers", config["nameservers"])
	bad = append(bad, faults...)
	for i, s := range servers {
		if _, err := netip.ParseAddr(s); err != nil {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s.nameservers[%d]", at, i), "must be an IP address, not %q", s))
		}
	}
	switch {
	case len(servers) > maxNameservers:
		bad = append(bad, object.Faultf(at+".nameservers", "must be no more than %d", maxNameservers))
	case len(servers) == 0 && spec.GetDnsPolicy() == "None":
		bad = append(bad, object.Faultf(at+".nameservers", "must have one if dnsPolicy is None"))
	}
	searches, faults := textsOf(at+".searches", config["searches"])
	bad = append(bad, faults...)
	for i, s := range searches {
		if s == "." {
			continue
		}
		// Underscores are allowed here, as in Kubernetes.
		for _, why := range validation.IsDNS1123Subdomain(strings.ReplaceAll(strings.TrimSuffix(s, "."), "_", "x")) {
			bad = append(bad, object.Fault{Path: fmt.Sprintf("%s.searches[%d]", at, i), Description: why})
		}
	}
	if len(searches) > maxSearches || len(strings.Join(searches, " ")) > maxSearchText {
		bad = append(bad, object.Faultf(at+".searches", "must be no more than %d, of %d characters in all", maxSearches,
			maxSearchText))
	}
	return append(bad, optionFaults(at+".options", config["options"])...)
}

// optionFaults returns what is wrong with the options of a resolver.
func optionFaults(at string, list *structpb.Value) (bad []object.Fault) {
	if list != nil && list.GetListValue() == nil {
		return []object.Fault{{Path: at, Description: "must be a list"}}
	}
	plain := func(s string) bool {
		return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(":#;", c) })
	}
	for i, v := range list.GetListValue().GetValues() {
		option := v.GetStructValue().GetFields()
		bad = append(bad, otherFields(fmt.Sprintf("%s[%d]", at, i), option, "name", "value")...)
		name, value := option["name"].GetStringValue(), option["value"]
		if name == "" || !plain(name) {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s[%d].name", at, i), "must be a word, not %q", name))
		}
		if _, text := value.GetKind().(*structpb.Value_StringValue); value != nil && !text || !plain(value.GetStringValue()) {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s[%d].value", at, i), "must be a word in quotes"))
		}
	}
	return bad
}

// otherFields returns a fault for each field that is not one of known, by name.
func otherFields(at string, fields map[string]*structpb.Value, known ...string) (bad []object.Fault) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			bad = append(bad, object.Faultf(at+"."+name, "unknown field: must be one of %s", strings.Join(known, ", ")))
		}
	}
	return bad
}

// textsOf returns the texts of a list.
func textsOf(at string, list *structpb.Value) (out []string, bad []object.Fault) {
	if list != nil && list.GetListValue() == nil {
		return nil, []object.Fault{{Path: at, Description: "must be a list"}}
	}
	for i, v := range list.GetListValue().GetValues() {
		if _, ok := v.GetKind().(*structpb.Value_StringValue); !ok {
			bad = append(bad, object.Fault{Path: fmt.Sprintf("%s[%d]", at, i), Description: "must be a text"})
		}
		out = append(out, v.GetStringValue())
	}
	return out, bad
}
