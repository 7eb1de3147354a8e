package serve

import (
	"fmt"
	"net"
	"strings"
)

// CheckAdvertised returns an error unless address is host:port of one host: others are sent there, and of two
// candidates of an election with one address the second takes the first for dead. A wildcard (0.0.0.0, [::], an empty
// host) is an address of every host.
func CheckAdvertised(address string) error {
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return fmt.Errorf("advertised address %q: %w", address, err)
	case strings.Trim(host, "0.:x") == "" || net.ParseIP(host).IsUnspecified():
		return fmt.Errorf("advertised address %q: every host has it; give the address at which others reach this one",
			address)
	case port == "" || port == "0":
		return fmt.Errorf("advertised address %q: has no port", address)
	}
	return nil
}
