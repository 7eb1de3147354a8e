// Package address gives machines addresses of their own where the network is not loopback: in a container, each is put
// on the container's interface, where siblings on the same network reach it.
package address

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Interface is where addresses are put. The zero Interface is loopback, on which every address of 127.0.0.0/8 is there
// already.
type Interface struct{ Name string }

// Add puts an IPv4 address on the interface; one that is there is no error. It needs the capability NET_ADMIN.
func (i Interface) Add(ip string) error {
	return i.change(ip, netlink.AddrAdd, syscall.EEXIST)
}

// Remove takes an address off the interface; one that is not there is no error.
func (i Interface) Remove(ip string) error {
	return i.change(ip, netlink.AddrDel, syscall.EADDRNOTAVAIL)
}

func (i Interface) change(ip string, do func(netlink.Link, *netlink.Addr) error, fine error) error {
	if i.Name == "" {
		return nil
	}
	link, err := netlink.LinkByName(i.Name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", i.Name, err)
	}
	addr, err := netlink.ParseAddr(ip + "/32")
	if err != nil {
		return err
	}
	if err := do(link, addr); err != nil && !errors.Is(err, fine) {
		return fmt.Errorf("address %s on interface %q: %w", ip, i.Name, err)
	}
	return nil
}
