// Package dns answers the names of services: NAME.NAMESPACE.svc.cluster.local and the names below it, as Kubernetes'
// DNS does. Other names are asked for where the host asks.
package dns

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Domain is the domain of the cluster: below it no other server is asked. Source: Kubernetes' default.
const Domain = "cluster.local"

const (
	zone     = Domain + "."
	services = "svc." + zone
	ttl      = 5 // seconds; source: CoreDNS' plugin kubernetes
	headless = "None"
)

// Services are all services, by namespace and name, with a slash between them. They are never changed.
type Services map[string]*schedulingv1.ServiceEndpoints

// Answer is what is answered to one question.
type Answer struct {
	Code      int // dns.RcodeSuccess or dns.RcodeNameError
	Records   []dns.RR
	Authority []dns.RR // who says that there is nothing
	Further   []dns.RR // addresses of what Records name
	// Alias is the name outside of the cluster that the records lead to, whose addresses are to be asked for; empty if
	// there is none.
	Alias string
}

// Resolve answers a question, and reports whether it is one for the cluster. Source: Kubernetes DNS-Based Service
// Discovery, version 1.1.0.
func (s Services) Resolve(q dns.Question) (a Answer, ours bool) {
	name := dns.CanonicalName(q.Name)
	switch {
	case dns.IsSubDomain("in-addr.arpa.", name):
		return s.reverse(q)
	case !dns.IsSubDomain(zone, name):
		return Answer{}, false
	}
	found := s.find(q.Name, name)
	switch {
	case !found.exists:
		a.Code = dns.RcodeNameError
	case found.alias != "":
		a.Records = []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: found.alias}}
		if q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA {
			a.Alias = found.alias
		}
	case q.Qtype == dns.TypeA:
		for _, ip := range found.addresses {
			a.Records = append(a.Records, address(q.Name, ip))
		}
	case q.Qtype == dns.TypeSRV:
		a.Records, a.Further = found.servers, found.further
	}
	if len(a.Records) == 0 {
		a.Authority = nothing()
	}
	return a, true
}

// found is what there is of a name.
type found struct {
	exists    bool
	addresses []netip.Addr
	servers   []dns.RR // SRV
	further   []dns.RR
	alias     string
}

// find returns what there is of a canonical name; as is how the question has it.
func (s Services) find(as, name string) found {
	below, ok := strings.CutSuffix(name, "."+services)
	if !ok { // the domain itself, "svc", or something that is not there
		return found{exists: name == zone || name == services}
	}
	labels := strings.Split(below, ".")
	namespace := labels[len(labels)-1]
	if len(labels) == 1 {
		return found{exists: s.hasNamespace(namespace)}
	}
	svc := s[namespace+"/"+labels[len(labels)-2]]
	if svc == nil {
		return found{}
	}
	own := labels[len(labels)-2] + "." + namespace + "." + services
	switch rest := labels[:len(labels)-2]; {
	case svc.GetExternalName() != "":
		return found{exists: len(rest) == 0, alias: dns.Fqdn(svc.GetExternalName())}
	case len(rest) == 0:
		return found{exists: true, addresses: addressesOf(svc), servers: nil}.with(serversOf(svc, as, own, "", ""))
	case len(rest) == 2 && strings.HasPrefix(rest[0], "_") && strings.HasPrefix(rest[1], "_"):
		out := found{}.with(serversOf(svc, as, own, rest[0][1:], rest[1][1:]))
		out.exists = len(out.servers) > 0
		return out
	case len(rest) == 1:
		ips := hostsOf(svc)[rest[0]]
		return found{exists: len(ips) > 0, addresses: ips}
	}
	return found{}
}

func (f found) with(servers, further []dns.RR) found {
	f.servers, f.further = servers, further
	return f
}

func (s Services) hasNamespace(name string) bool {
	for key := range s {
		if strings.HasPrefix(key, name+"/") {
			return true
		}
	}
	return false
}

// addressesOf returns the address of a service, or those of its pods if it has none of its own.
func addressesOf(svc *schedulingv1.ServiceEndpoints) (out []netip.Addr) {
	if svc.GetClusterIp() != headless {
		if ip, err := netip.ParseAddr(svc.GetClusterIp()); err == nil {
			out = append(out, ip)
		}
		return out
	}
	for _, e := range svc.GetEndpoints() {
		if ip, err := netip.ParseAddr(e.GetAddress()); err == nil && e.GetServing() {
			out = append(out, ip)
		}
	}
	return out
}

// hostsOf returns the addresses of the pods of a headless service by their host names. Those without one have their
// address as a name, with dashes.
func hostsOf(svc *schedulingv1.ServiceEndpoints) map[string][]netip.Addr {
	if svc.GetClusterIp() != headless {
		return nil
	}
	out := map[string][]netip.Addr{}
	for _, e := range svc.GetEndpoints() {
		if ip, err := netip.ParseAddr(e.GetAddress()); err == nil && e.GetServing() {
			out[hostOf(e)] = append(out[hostOf(e)], ip)
		}
	}
	return out
}

func hostOf(e *schedulingv1.ServiceEndpoint) string {
	if e.GetHostname() != "" {
		return strings.ToLower(e.GetHostname())
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.GetAddress())
}

// serversOf returns the named ports of a service with a name and a protocol, or all if both are empty.
func serversOf(svc *schedulingv1.ServiceEndpoints, as, own, port, protocol string) (servers, further []dns.RR) {
	add := func(target string, number int32, ip netip.Addr) {
		servers = append(servers, &dns.SRV{
			Hdr: header(as, dns.TypeSRV), Weight: 1, Port: uint16(number), Target: target,
		})
		further = append(further, address(target, ip))
	}
	for i, p := range svc.GetPorts() {
		if port != "" && (p.GetName() != port || strings.ToLower(p.GetProtocol()) != protocol) {
			continue
		}
		if svc.GetClusterIp() != headless {
			for _, ip := range addressesOf(svc) {
				add(own, p.GetPort(), ip)
			}
			continue
		}
		for _, e := range svc.GetEndpoints() {
			ip, err := netip.ParseAddr(e.GetAddress())
			if err == nil && e.GetServing() && i < len(e.GetPorts()) && e.GetPorts()[i] > 0 {
				add(hostOf(e)+"."+own, e.GetPorts()[i], ip)
			}
		}
	}
	return servers, further
}

// reverse answers which service or pod an address belongs to.
func (s Services) reverse(q dns.Question) (Answer, bool) {
	labels := dns.SplitDomainName(q.Name)
	if len(labels) != 6 {
		return Answer{}, false
	}
	ip, err := netip.ParseAddr(strings.Join([]string{labels[3], labels[2], labels[1], labels[0]}, "."))
	if err != nil {
		return Answer{}, false
	}
	var a Answer
	point := func(name string) {
		a.Records = append(a.Records, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: name})
	}
	for _, svc := range s {
		own := fmt.Sprintf("%s.%s.%s", svc.GetName(), svc.GetNamespace(), services)
		if svc.GetClusterIp() == ip.String() {
			point(own)
		}
		for host, ips := range hostsOf(svc) {
			for _, of := range ips {
				if of == ip {
					point(host + "." + own)
				}
			}
		}
	}
	if len(a.Records) == 0 {
		return Answer{}, false
	}
	if q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY {
		a.Records, a.Authority = nil, nothing()
	}
	return a, true
}

func address(name string, ip netip.Addr) dns.RR {
	if ip.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: ip.AsSlice()}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: ip.AsSlice()}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// nothing says for how long an answer without records holds.
func nothing() []dns.RR {
	return []dns.RR{&dns.SOA{
		Hdr: header(zone, dns.TypeSOA), Ns: "ns.dns." + zone, Mbox: "hostmaster." + zone, Serial: 1, Refresh: 7200,
		Retry: 1800, Expire: 86400, Minttl: ttl,
	}}
}
