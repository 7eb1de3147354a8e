// Package reach connects to webhooks. It connects to public and private addresses of other hosts only, never through
// a proxy, and presents nothing that the cluster could be entered with.
package reach

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// TLS returns the settings of connections to a server whose certificate the authorities of a bundle sign, in PEM, or
// those of the host if it is empty. They hold no certificate of ours.
func TLS(caBundle []byte) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(caBundle) > 0 {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(caBundle) {
			return nil, errors.New("contains no certificate in PEM")
		}
	}
	return cfg, nil
}

// Dialer returns a dialer that asks allowed about each address before it connects, after names were resolved; nil
// means Allowed.
func Dialer(allowed func(netip.Addr) error) *net.Dialer {
	if allowed == nil {
		allowed = Allowed
	}
	return &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return allowed(at.Addr())
	}}
}

var (
	here = netip.MustParsePrefix("0.0.0.0/8")
	// embeds are the prefixes of IPv6 addresses that contain an IPv4 address, and the byte at which that begins: NAT64
	// (RFC 6052), 6to4 (RFC 3056) and IPv4-compatible addresses (RFC 4291).
	embeds = map[netip.Prefix]int{
		netip.MustParsePrefix("64:ff9b::/96"): 12, netip.MustParsePrefix("2002::/16"): 2, netip.MustParsePrefix("::/96"): 12,
	}
	// metadata is where clouds serve the credentials of their machines, besides the link-local 169.254.169.254.
	metadata = []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"),
	}
)

// Allowed returns why a webhook may not be at an address. It is asked about each address that is connected to, after
// names were resolved.
func Allowed(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	if a.IsUnspecified() || a.IsLoopback() { // before ::1 is taken for an IPv4-compatible address
		return unreachable(a)
	}
	for prefix, at := range embeds {
		if raw := a.As16(); a.Is6() && prefix.Contains(a) {
			a = netip.AddrFrom4([4]byte(raw[at : at+4]))
			break
		}
	}
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || here.Contains(a) || slices.Contains(metadata, a) ||
		!a.IsValid() {
		return unreachable(a)
	}
	return nil
}

func unreachable(a netip.Addr) error {
	return fmt.Errorf("a webhook must not be at a loopback, link-local or multicast address, and %s is one", a)
}
