package loopback

import "net/netip"

// dnsHost is the last number of the address of the server of names in a range of services. Source: the address that
// Kubernetes' installers choose.
const dnsHost = 10

// DNS returns where the names of the services of a range are answered. No service gets that address.
func DNS(services netip.Prefix) netip.Addr {
	a := services.Masked().Addr().As4()
	a[3] = dnsHost
	return netip.AddrFrom4(a)
}
