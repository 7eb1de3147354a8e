package serve

import (
	"fmt"
	"net"
	"strings"
)

// CheckAdvertised returns an error unless address is host:port of one host: clients are sent there, and a candidate of
// an election assumes that another holder with its own address is dead. A wildcard (0.0.0.0, [::], an empty host) is an
// address of every host.
func CheckAdvertised(address string) error {
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return fmt.Errorf("advertised address %q: %w", address, err)
	case strings.Trim(host, "0.:x") == "" || net.ParseIP(host).IsUnspecified():
		return fmt.Errorf(
			"advertised address %q: it is not the address of one host; give the address at which others reach this host",
			address)
	case port == "" || port == "0":
		return fmt.Errorf("advertised address %q: has no port", address)
	}
	return nil
}
