package dns_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/dns"
)

func known() dns.Services {
	ports := []*schedulingv1.ServiceEndpointsPort{
		{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53},
	}
	pods := []*schedulingv1.ServiceEndpoint{
		{Pod: "db-0", Address: "127.240.0.1", Hostname: "db-0", Ports: []int32{8080, 5353}, Serving: true},
		{Pod: "db-1", Address: "127.240.0.2", Ports: []int32{8081, 0}, Serving: true},
		{Pod: "db-2", Address: "127.240.0.3", Hostname: "db-2", Ports: []int32{8082, 5353}},
	}
	return dns.Services{
		"dev/web":   {Namespace: "dev", Name: "web", ClusterIp: "127.224.0.20", Ports: ports, Endpoints: pods},
		"dev/db":    {Namespace: "dev", Name: "db", ClusterIp: "None", Ports: ports, Endpoints: pods},
		"dev/none":  {Namespace: "dev", Name: "none", ClusterIp: "None", Ports: ports},
		"dev/ext":   {Namespace: "dev", Name: "ext", ExternalName: "www.example.org"},
		"prod/loop": {Namespace: "prod", Name: "loop", ExternalName: "loop.prod.svc.cluster.local"},
	}
}

// Each kind of name has the records of Kubernetes DNS-Based Service Discovery.
func TestResolve(t *testing.T) {
	const below = "svc.cluster.local."
	for _, c := range []struct {
		name  string
		kind  uint16
		want  string // records without their TTL and class
		none  bool   // the name does not exist
		alias string
	}{
		{name: "web.dev." + below, kind: mdns.TypeA, want: "web.dev.svc.cluster.local. A 127.224.0.20"},
		{name: "WEB.Dev.SVC.cluster.LOCAL.", kind: mdns.TypeA, want: "WEB.Dev.SVC.cluster.LOCAL. A 127.224.0.20"},
		{name: "web.dev." + below, kind: mdns.TypeAAAA},
		{name: "web.dev." + below, kind: mdns.TypeTXT},
		{name: "web.prod." + below, kind: mdns.TypeA, none: true},
		{name: "dev." + below, kind: mdns.TypeA},
		{name: "missing." + below, kind: mdns.TypeA, none: true},
		{name: below, kind: mdns.TypeA},
		{name: "pod.cluster.local.", kind: mdns.TypeA, none: true},
		{name: "a.web.dev." + below, kind: mdns.TypeA, none: true},
		// Of a headless service the pods that serve.
		{
			name: "db.dev." + below, kind: mdns.TypeA,
			want: "db.dev.svc.cluster.local. A 127.240.0.1\ndb.dev.svc.cluster.local. A 127.240.0.2",
		},
		{name: "none.dev." + below, kind: mdns.TypeA},
		{name: "db-0.db.dev." + below, kind: mdns.TypeA, want: "db-0.db.dev.svc.cluster.local. A 127.240.0.1"},
		{name: "127-240-0-2.db.dev." + below, kind: mdns.TypeA, want: "127-240-0-2.db.dev.svc.cluster.local. A 127.240.0.2"},
		{name: "db-2.db.dev." + below, kind: mdns.TypeA, none: true},
		{name: "db-0.web.dev." + below, kind: mdns.TypeA, none: true},
		// Ports.
		{
			name: "_http._tcp.web.dev." + below, kind: mdns.TypeSRV,
			want: "_http._tcp.web.dev.svc.cluster.local. SRV 0 1 80 web.dev.svc.cluster.local.",
		},
		{name: "_http._udp.web.dev." + below, kind: mdns.TypeSRV, none: true},
		{
			name: "_dns._udp.db.dev." + below, kind: mdns.TypeSRV,
			want: "_dns._udp.db.dev.svc.cluster.local. SRV 0 1 5353 db-0.db.dev.svc.cluster.local.",
		},
		{
			name: "_http._tcp.db.dev." + below, kind: mdns.TypeSRV,
			want: "_http._tcp.db.dev.svc.cluster.local. SRV 0 1 8080 db-0.db.dev.svc.cluster.local.\n" +
				"_http._tcp.db.dev.svc.cluster.local. SRV 0 1 8081 127-240-0-2.db.dev.svc.cluster.local.",
		},
		{
			name: "web.dev." + below, kind: mdns.TypeSRV,
			want: "web.dev.svc.cluster.local. SRV 0 1 53 web.dev.svc.cluster.local.\n" +
				"web.dev.svc.cluster.local. SRV 0 1 80 web.dev.svc.cluster.local.",
		},
		// Names of others.
		{
			name: "ext.dev." + below, kind: mdns.TypeA, want: "ext.dev.svc.cluster.local. CNAME www.example.org.",
			alias: "www.example.org.",
		},
		{name: "ext.dev." + below, kind: mdns.TypeCNAME, want: "ext.dev.svc.cluster.local. CNAME www.example.org."},
		{name: "a.ext.dev." + below, kind: mdns.TypeA, none: true},
		// Addresses.
		{
			name: "20.0.224.127.in-addr.arpa.", kind: mdns.TypePTR,
			want: "20.0.224.127.in-addr.arpa. PTR web.dev.svc.cluster.local.",
		},
		{
			name: "1.0.240.127.in-addr.arpa.", kind: mdns.TypePTR,
			want: "1.0.240.127.in-addr.arpa. PTR db-0.db.dev.svc.cluster.local.",
		},
	} {
		t.Run(mdns.TypeToString[c.kind]+" "+c.name, func(t *testing.T) {
			a, ours := known().Resolve(mdns.Question{Name: c.name, Qtype: c.kind, Qclass: mdns.ClassINET})
			if !ours {
				t.Fatal("asked of another server")
			}
			if (a.Code == mdns.RcodeNameError) != c.none || a.Alias != c.alias {
				t.Errorf("code %s, alias %q", mdns.RcodeToString[a.Code], a.Alias)
			}
			if diff := cmp.Diff(c.want, text(a.Records)); diff != "" {
				t.Error(diff)
			}
			if (len(a.Authority) > 0) != (c.want == "") {
				t.Errorf("authority %v", a.Authority)
			}
		})
	}
}

func text(records []mdns.RR) string {
	var lines []string
	for _, r := range records {
		fields := strings.Fields(r.String()) // name, TTL, class, type and data
		lines = append(lines, strings.Join(append(fields[:1], fields[3:]...), " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Names and addresses of others are not answered.
func TestOthersNamesAreNotOurs(t *testing.T) {
	for _, name := range []string{
		"example.org.", "cluster.local.example.org.", "notcluster.local.", "9.9.9.9.in-addr.arpa.", "127.in-addr.arpa.",
		"x.0.240.127.in-addr.arpa.", "3.0.240.127.in-addr.arpa.",
	} {
		if _, ours := known().Resolve(mdns.Question{Name: name, Qtype: mdns.TypePTR, Qclass: mdns.ClassINET}); ours {
			t.Errorf("%s is answered", name)
		}
	}
}
