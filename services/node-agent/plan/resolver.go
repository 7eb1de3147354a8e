package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// Resolver is what a resolv.conf has. Source: resolv.conf(5).
type Resolver struct {
	Servers []string
	Search  []string
	Options []string // name or name:value
}

// Bounds of a pod's resolv.conf. Source: Kubernetes, pkg/apis/core/validation.
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// The values of dnsPolicy.
const (
	dnsClusterFirst            = "ClusterFirst"
	dnsClusterFirstWithHostNet = "ClusterFirstWithHostNet"
	dnsDefault                 = "Default"
	dnsNone                    = "None"
)

// ResolverOf returns what a pod resolves names by: cluster is the server of the cluster's names, the zero address if
// there is none, and host is what the node resolves by. own is false if that is what the host's own file has. The rules
// are those of Kubernetes.
func ResolverOf(pod *schedulingv1.Pod, cluster netip.Addr, domain string, host Resolver) (r Resolver, own bool,
	err error,
) {
	spec := pod.GetSpec()
	policy := spec.GetDnsPolicy()
	if policy == dnsClusterFirst && spec.GetHostNetwork() || policy == "" {
		policy = map[bool]string{true: dnsDefault, false: dnsClusterFirst}[spec.GetHostNetwork()]
	}
	switch policy {
	case dnsClusterFirst, dnsClusterFirstWithHostNet:
		if !cluster.IsValid() {
			if policy == dnsClusterFirst && len(spec.GetDnsConfig().GetFields()) == 0 {
				return host, false, nil
			}
			return r, false, errors.New("this node has no server for the names of services")
		}
		below := "svc." + domain
		r = Resolver{
			Servers: []string{cluster.String()},
			Search:  append([]string{pod.GetMetadata().GetNamespace() + "." + below, below, domain}, host.Search...),
			Options: []string{"ndots:5"},
		}
	case dnsDefault:
		r = host
	case dnsNone:
	default:
		return r, false, fmt.Errorf("dnsPolicy %q is not known", policy)
	}
	given := spec.GetDnsConfig().GetFields()
	r.Servers = unique(append(slices.Clone(r.Servers), texts(given["nameservers"])...))
	r.Search = unique(append(slices.Clone(r.Search), texts(given["searches"])...))
	r.Options = mergedOptions(r.Options, given["options"])
	if policy == dnsNone && len(r.Servers) == 0 {
		return r, false, errors.New("dnsPolicy None needs dnsConfig.nameservers")
	}
	for _, text := range slices.Concat(r.Servers, r.Search, r.Options) {
		if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == '#' || c == ';' }) {
			return r, false, fmt.Errorf("%q cannot be in a resolv.conf", text)
		}
	}
	r.Servers = r.Servers[:min(len(r.Servers), maxServers)]
	r.Search = bounded(r.Search)
	return r, policy != dnsDefault || len(given) > 0, nil
}

// bounded leaves out the last search domains if there are more than a resolver takes.
func bounded(search []string) []string {
	search = search[:min(len(search), maxSearches)]
	for len(strings.Join(search, " ")) > maxSearchChars {
		search = search[:len(search)-1]
	}
	return search
}

// mergedOptions returns options with those of a list of {name, value}, which replace those of the same name.
func mergedOptions(have []string, list *structpb.Value) []string {
	out := slices.Clone(have)
	for _, v := range list.GetListValue().GetValues() {
		name := v.GetStructValue().GetFields()["name"].GetStringValue()
		text := name
		if value, ok := v.GetStructValue().GetFields()["value"]; ok && value.GetStringValue() != "" {
			text += ":" + value.GetStringValue()
		}
		if name == "" {
			continue
		}
		out = slices.DeleteFunc(out, func(o string) bool { n, _, _ := strings.Cut(o, ":"); return n == name })
		out = append(out, text)
	}
	return out
}

func texts(list *structpb.Value) (out []string) {
	for _, v := range list.GetListValue().GetValues() {
		out = append(out, v.GetStringValue())
	}
	return out
}

func unique(list []string) (out []string) {
	for _, s := range list {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Text returns the resolv.conf.
func (r Resolver) Text() string {
	var b strings.Builder
	for _, s := range r.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.Search, " "))
	}
	if len(r.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.Options, " "))
	}
	return b.String()
}
