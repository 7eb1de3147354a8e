package loopback

import "net/netip"

// dnsOffset is how far the server of names is from the beginning of a range of services. Source: the address that
// Kubernetes' installers choose.
const dnsOffset = 10

// DNS returns where the names of the services of a range are answered. No service gets that address.
func DNS(services netip.Prefix) netip.Addr {
	a := services.Masked().Addr()
	for range dnsOffset {
		a = a.Next()
	}
	return a
}
