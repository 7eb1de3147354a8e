package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	spacesDir = "/run/netns"
	// spacePrefix begins the names of the namespaces of all tests. The process ID of the test follows.
	spacePrefix = "windlass-test-"
	// subnet is for documentation (RFC 5737). Each test has it in its own namespaces.
	subnet = "192.0.2"
	// port is the network interface of a host.
	port = "eth0"
)

// space is a network namespace. A nil one is that of the test itself.
type space struct {
	name   string
	handle netns.NsHandle
	links  *netlink.Handle
}

// do runs f in the namespace. What f starts stays in it.
func (s *space) do(f func() error) error {
	if s == nil {
		return f()
	}
	return apart(func() error {
		if err := netns.Set(s.handle); err != nil {
			return fmt.Errorf("enter namespace %s: %w", s.name, err)
		}
		return f()
	})
}

// apart runs f, which may enter another namespace, and returns to that of the test.
func apart(f func() error) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		return err
	}
	defer before.Close()
	err = f()
	if back := netns.Set(before); back != nil {
		return errors.Join(err, back) // still locked: the thread ends with the goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// dial connects from inside of the namespace.
func (s *space) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = s.do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// network is the namespaces of a test: that of each host is connected to a bridge, which has one of its own.
type network struct {
	t      *testing.T
	bridge *space
	hosts  map[string]*space // by address
}

// newNetwork returns a network without hosts, which is removed at the end of the test. The test is skipped where it is
// not allowed.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	removeStale(t)
	n := &network{t: t, hosts: map[string]*space{}}
	n.bridge = n.space("bridge")
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := n.bridge.links.LinkAdd(bridge); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
		t.Skipf("no bridge can be made here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	n.up(n.bridge, "br0")
	return n
}

// add returns a new namespace that has an address and is connected to the others.
func (n *network) add(name, address string) *space {
	n.t.Helper()
	s := n.space(name)
	n.hosts[address] = s
	bridge, err := n.bridge.links.LinkByName("br0")
	if err != nil {
		n.t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(address + "/24")
	if err != nil {
		n.t.Fatal(err)
	}
	err = n.bridge.links.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index},
		PeerName:  port, PeerNamespace: netlink.NsFd(s.handle),
	})
	if err != nil {
		n.t.Fatalf("link of %s: %v", name, err)
	}
	link, err := s.links.LinkByName(port)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := s.links.AddrAdd(link, addr); err != nil {
		n.t.Fatal(err)
	}
	n.up(n.bridge, name)
	n.up(s, port)
	return s
}

// space makes a namespace that is removed at the end of the test.
func (n *network) space(name string) *space {
	n.t.Helper()
	s := &space{name: fmt.Sprintf("%s%d-%s", spacePrefix, os.Getpid(), name)}
	if err := apart(func() (err error) {
		s.handle, err = netns.NewNamed(s.name) // which enters it
		return err
	}); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		n.t.Skipf("no network namespace can be made here: %v", err)
	} else if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := errors.Join(netns.DeleteNamed(s.name), s.handle.Close()); err != nil {
			n.t.Error(err)
		}
	})
	links, err := netlink.NewHandleAt(s.handle)
	if err != nil {
		n.t.Fatal(err)
	}
	s.links = links
	n.t.Cleanup(s.links.Close)
	n.up(s, "lo")
	return s
}

func (n *network) up(s *space, link string) {
	n.t.Helper()
	n.change(s, link, s.links.LinkSetUp)
}

func (n *network) change(s *space, name string, do func(netlink.Link) error) {
	n.t.Helper()
	link, err := s.links.LinkByName(name)
	if err == nil {
		err = do(link)
	}
	if err != nil {
		n.t.Fatalf("link %s of %s: %v", name, s.name, err)
	}
}

// cut takes the link of a host down at the bridge. What is sent to the host or by it is lost, and nothing says so.
func (n *network) cut(h *host) { n.change(n.bridge, h.name, n.bridge.links.LinkSetDown) }

// heal undoes cut.
func (n *network) heal(h *host) { n.up(n.bridge, h.name) }

// part loses what two hosts send to each other; both reach all others.
func (n *network) part(a, b *host) {
	n.t.Helper()
	n.neighbor(a, b, func(s *space, e *netlink.Neigh) error { return s.links.NeighSet(e) })
}

// join undoes part.
func (n *network) join(a, b *host) {
	n.t.Helper()
	n.neighbor(a, b, func(s *space, e *netlink.Neigh) error { return s.links.NeighDel(e) })
}

// neighbor changes the entries of two hosts for each other: with a hardware address that no host has.
func (n *network) neighbor(a, b *host, change func(*space, *netlink.Neigh) error) {
	n.t.Helper()
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		link, err := from.space.links.LinkByName(port)
		if err == nil {
			err = change(from.space, &netlink.Neigh{
				LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
				IP: net.ParseIP(to.address), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0xff},
			})
		}
		if err != nil {
			n.t.Fatalf("from %s to %s: %v", from.name, to.name, err)
		}
	}
}

// removeStale removes what a test has left that was killed: its namespaces, and the processes in them.
func removeStale(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(spacesDir)
	if errors.Is(err, os.ErrNotExist) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		rest, ours := strings.CutPrefix(e.Name(), spacePrefix)
		if _, err := fmt.Sscanf(rest, "%d-", &pid); !ours || err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		if s, err := netns.GetFromName(e.Name()); err == nil {
			killInside(t, s)
			s.Close()
		}
		if err := netns.DeleteNamed(e.Name()); err != nil {
			t.Logf("namespace %s of an earlier test: %v", e.Name(), err)
		}
	}
}

// killInside kills all processes in a namespace, until there are none.
func killInside(t *testing.T, s netns.NsHandle) {
	t.Helper()
	var want unix.Stat_t
	if err := unix.Fstat(int(s), &want); err != nil {
		t.Fatal(err)
	}
	for {
		pids := inside(t, want)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// inside returns the processes in a namespace, but for the test itself and those that have ended.
func inside(t *testing.T, want unix.Stat_t) (out []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var is unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns", "net"), &is) == nil && is.Ino == want.Ino && is.Dev == want.Dev {
			out = append(out, pid)
		}
	}
	return out
}
