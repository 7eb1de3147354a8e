package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Ports of etcd's members, and of the bootstrap member on a host, where a member of the host's own joins it.
const (
	clientPort, peerPort                   = 2379, 2380
	bootstrapClientPort, bootstrapPeerPort = 2389, 2390
)

// Host returns the address of the control plane's programs.
func (c *Cluster) Host() string {
	if c.Member != nil {
		return c.Member.Address
	}
	return c.Subnet + ".1"
}

// BootstrapHost returns the address of etcd's bootstrap member.
func (c *Cluster) BootstrapHost() string {
	if c.Member != nil {
		return c.Member.First
	}
	return c.Subnet + ".2"
}

// BootstrapURLs returns where etcd's bootstrap member serves clients, and where it meets the other members.
func (c *Cluster) BootstrapURLs() (client, peer string) {
	clients, peers := clientPort, peerPort
	if c.Member != nil { // beside the host's own member
		clients, peers = bootstrapClientPort, bootstrapPeerPort
	}
	return "https://" + hostPort(c.BootstrapHost(), clients), "https://" + hostPort(c.BootstrapHost(), peers)
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Gateway returns host and port of the cluster's one address.
func (c *Cluster) Gateway() string { return c.Address(topology.Gateway) }

// Address returns host and port at which a program is called.
func (c *Cluster) Address(program string) string {
	if c.Containers {
		return hostPort(program, topology.Port(program))
	}
	return hostPort(c.Host(), topology.Port(program))
}

// LocalAddress returns host and port at which a program is called from its own container or host.
func (c *Cluster) LocalAddress(program string) string {
	if c.Containers {
		return fmt.Sprintf("localhost:%d", topology.Port(program))
	}
	return c.Address(program)
}

// listen returns host and port that a program opens, step ports after its own.
func (c *Cluster) listen(program string, step int) string {
	host := c.Host()
	if c.Containers {
		host = "0.0.0.0"
	}
	return hostPort(host, topology.Port(program)+step)
}

// freeSubnet returns an unused subnet of the loopback network. Each cluster starts its search at its own offset, so
// that a cluster that is removed and created again usually gets the same addresses.
func freeSubnet(dir string) (string, error) {
	taken := takenSubnets()
	// 127.0.0.x is everybody's; from 224 on are the ranges of services and pods (kit/loopback).
	const low, high = 16, 224
	const size = (high - low) * 256
	start := offsetOf(dir) % size
	for i := range uint32(size) {
		n := (start + i) % size
		subnet := fmt.Sprintf("127.%d.%d", low+n/256, n%256)
		if !taken[subnet] && usable(subnet) {
			return subnet, nil
		}
	}
	return "", errors.New("no free addresses in 127.0.0.0/8")
}

// offsetOf returns where a cluster starts its search.
func offsetOf(dir string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(dir))
	return h.Sum32()
}

// EnsureNetwork gives the cluster ranges for the addresses of its pods and services that no other cluster of this user
// has, also of those that are down, and no cluster of the host that runs. A cluster in containers has none: its
// machines are not on the loopback network. If all are taken it has none either, and its pods have the addresses of
// their machines. An error means that the ranges of the cluster, which must not run, are by now those of another one.
func (c *Cluster) EnsureNetwork(ctx context.Context) error {
	if c.Containers {
		return nil
	}
	if c.Network > 0 {
		held, err := c.HoldNetwork(ctx)
		if err != nil {
			return err
		}
		return held.Close()
	}
	taken, subnets := map[int]bool{}, []string{c.Subnet}
	for _, s := range otherSettings() {
		taken[s.Network], subnets = true, append(subnets, s.Subnet)
	}
	for n := 1; n <= loopback.Networks; n++ { // clusters of before had machines where services are now
		taken[n] = taken[n] || slices.ContainsFunc(subnets, func(s string) bool {
			p, err := netip.ParsePrefix(s + ".0/24")
			return err == nil && (p.Overlaps(loopback.ServiceRange(n)) || p.Overlaps(loopback.PodRange(n)))
		})
	}
	start := int(offsetOf(c.dir) % loopback.Networks)
	for i := range loopback.Networks {
		n := (start+i)%loopback.Networks + 1
		if taken[n] || loopback.InUse(n) {
			continue
		}
		held, err := loopback.Hold(n)
		if errors.Is(err, loopback.ErrHeld) {
			continue
		}
		if err != nil {
			return err
		}
		c.Network = n
		return held.Close()
	}
	return nil
}

// HoldNetwork takes the ranges of a cluster that has some, until they are closed or this process ends, so that no other
// cluster on this host gets them or runs with them.
func (c *Cluster) HoldNetwork(ctx context.Context) (io.Closer, error) {
	held, err := loopback.Await(ctx, c.Network)
	if errors.Is(err, loopback.ErrHeld) {
		return nil,
			fmt.Errorf("addresses of pods and services of cluster %q (%s, %s): %w: stop the cluster that it belongs to first",
				c.Name, loopback.PodRange(c.Network), loopback.ServiceRange(c.Network), err)
	}
	return held, err
}

func usable(subnet string) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("%s.1:%d", subnet, topology.Port(topology.Gateway)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// takenSubnets returns those of this user's clusters, also of those that are down.
func takenSubnets() map[string]bool {
	taken := map[string]bool{}
	for _, s := range otherSettings() {
		taken[s.Subnet] = true
	}
	return taken
}

// otherSettings returns the settings of this user's clusters that can be read.
func otherSettings() (all []Settings) {
	home, err := homeFolder()
	if err != nil {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(home, "clusters", "*", settingsFile))
	for _, f := range files {
		var s Settings
		if raw, err := os.ReadFile(f); err == nil && json.Unmarshal(raw, &s) == nil {
			all = append(all, s)
		}
	}
	return all
}
