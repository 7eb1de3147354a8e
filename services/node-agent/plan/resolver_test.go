package plan_test

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// What a pod resolves by follows its dnsPolicy and dnsConfig as in Kubernetes.
func TestResolverOf(t *testing.T) {
	host := plan.Resolver{Servers: []string{"10.0.0.1"}, Search: []string{"example.org"}, Options: []string{"rotate"}}
	server := netip.MustParseAddr("127.224.0.10")
	cluster := `nameserver 127.224.0.10
search dev.svc.cluster.local svc.cluster.local cluster.local example.org
options ndots:5
`
	hosts := "nameserver 10.0.0.1\nsearch example.org\noptions rotate\n"
	config := func(fields map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	many := make([]any, 40)
	for i := range many {
		many[i] = "d" + strings.Repeat("x", i) + ".example"
	}
	for name, c := range map[string]struct {
		spec   *schedulingv1.PodSpec
		server netip.Addr
		want   string
		shared bool // with the host
		err    string
	}{
		"the default":  {spec: &schedulingv1.PodSpec{}, server: server, want: cluster},
		"ClusterFirst": {spec: &schedulingv1.PodSpec{DnsPolicy: "ClusterFirst"}, server: server, want: cluster},
		"in the network of the host": {
			spec:   &schedulingv1.PodSpec{DnsPolicy: "ClusterFirst", HostNetwork: new(true)},
			server: server, want: hosts, shared: true,
		},
		"and yet the cluster's": {spec: &schedulingv1.PodSpec{
			DnsPolicy:   "ClusterFirstWithHostNet",
			HostNetwork: new(true),
		}, server: server, want: cluster},
		"Default": {
			spec: &schedulingv1.PodSpec{DnsPolicy: "Default"}, server: server, want: hosts,
			shared: true,
		},
		"no server":               {spec: &schedulingv1.PodSpec{DnsPolicy: "ClusterFirst"}, want: hosts, shared: true},
		"no server for what asks": {spec: &schedulingv1.PodSpec{DnsPolicy: "ClusterFirstWithHostNet"}, err: "no server"},
		"no server for a config": {
			spec: &schedulingv1.PodSpec{DnsPolicy: "ClusterFirst", DnsConfig: config(map[string]any{"searches": []any{"a"}})},
			err:  "no server",
		},
		"None without servers":       {spec: &schedulingv1.PodSpec{DnsPolicy: "None"}, err: "nameservers"},
		"a policy that there is not": {spec: &schedulingv1.PodSpec{DnsPolicy: "Mine"}, err: `"Mine"`},
		"a line break in a name": {
			spec: &schedulingv1.PodSpec{
				DnsPolicy: "None", DnsConfig: config(map[string]any{"nameservers": []any{"1.1.1.1\noptions debug"}}),
			}, err: "cannot be",
		},
		"None with everything of ours": {
			spec: &schedulingv1.PodSpec{DnsPolicy: "None", DnsConfig: config(map[string]any{
				"nameservers": []any{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, "searches": []any{"a.example"},
				"options": []any{map[string]any{"name": "ndots", "value": "2"}, map[string]any{"name": "edns0"}},
			})},
			want: "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nsearch a.example\noptions ndots:2 edns0\n",
		},
		"added to the cluster's": {spec: &schedulingv1.PodSpec{DnsConfig: config(map[string]any{
			"nameservers": []any{"192.0.2.1"}, "searches": []any{"example.org", "b.example"},
			"options": []any{map[string]any{"name": "ndots", "value": "2"}},
		})}, server: server, want: `nameserver 127.224.0.10
nameserver 192.0.2.1
search dev.svc.cluster.local svc.cluster.local cluster.local example.org b.example
options ndots:2
`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Namespace: "dev", Name: "p"}, Spec: c.spec}
			r, own, err := plan.ResolverOf(pod, c.server, "cluster.local", host)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || r.Text() != c.want || own == c.shared {
				t.Errorf("error %v, own %t:\n%s, want\n%s", err, own, r.Text(), c.want)
			}
		})
	}
	pod := &schedulingv1.Pod{Spec: &schedulingv1.PodSpec{
		DnsPolicy: "None", DnsConfig: config(map[string]any{"nameservers": []any{"192.0.2.1"}, "searches": many}),
	}}
	if r, _, err := plan.ResolverOf(pod, server, "cluster.local", host); err != nil || len(r.Search) != 32 {
		t.Errorf("%d search domains, %v", len(r.Search), err)
	}
}
