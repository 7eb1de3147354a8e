package plan

import (
	"fmt"
	"net/netip"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	// Headless is the address of a service that has none: clients find its pods by name.
	Headless = "None"
	// ExternalName is the type of a service that is another name of a host.
	ExternalName = "ExternalName"
)

// dnsOffset is how far the address of the DNS server is from the beginning of a range: that of kit/loopback.DNS.
const dnsOffset = 10

// HasAddress reports whether services of a type have an address, unless they are headless.
func HasAddress(s *schedulingv1.Service) bool { return s.GetSpec().GetType() != ExternalName }

// LacksAddress reports whether a service is to get an address and has none.
func LacksAddress(s *schedulingv1.Service) bool {
	return HasAddress(s) && s.GetSpec().GetClusterIp() == ""
}

// AddressOf returns the address of a service; empty if it has none.
func AddressOf(s *schedulingv1.Service) string {
	if ip := s.GetSpec().GetClusterIp(); HasAddress(s) && ip != Headless {
		return ip
	}
	return ""
}

// FreeAddress returns an address of a range of IPv4 addresses that is neither reserved nor taken; false if there is
// none. The search begins at the start-th address of the range, from 0, modulo their number: writers that begin at
// different places rarely choose the same address.
func FreeAddress(r netip.Prefix, start uint32, taken func(netip.Addr) bool) (netip.Addr, bool) {
	size := uint32(1) << (32 - r.Bits())
	for i := range size {
		if a := addressAt(r, (start+i)%size); !reserved(r, a) && !taken(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// addressAt returns the n-th address of a range, from 0.
func addressAt(r netip.Prefix, n uint32) netip.Addr {
	a := r.Masked().Addr().As4()
	for i := 3; i >= 0; i-- {
		n += uint32(a[i])
		a[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom4(a)
}

// reserved reports whether no service may have an address of a range: the first and the last, which are those of a
// network and its broadcast elsewhere, and that of the DNS server.
func reserved(r netip.Prefix, a netip.Addr) bool {
	return a == r.Masked().Addr() || !r.Contains(a.Next()) || a == addressAt(r, dnsOffset)
}

// AddressFault returns why a service cannot have an address that it asks for; empty if it can, unless another service
// has it.
func AddressFault(r netip.Prefix, address string) string {
	a, err := netip.ParseAddr(address)
	switch {
	case err != nil || !a.Is4() || a.String() != address:
		return fmt.Sprintf("%q must be an IPv4 address or %s", address, Headless)
	case !r.Contains(a):
		return fmt.Sprintf("%s is not in the cluster's range for services, %s", a, r)
	case reserved(r, a):
		return fmt.Sprintf("%s is reserved: no service gets the first, the last and the tenth address of %s", a, r)
	}
	return ""
}
