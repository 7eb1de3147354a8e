package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
)

// Ports of the programs, the same in every cluster: clusters differ in their addresses.
const (
	gatewayPort = 6443
	metricsStep = 100 // a program's metrics are at its port plus this
)

var ports = map[string]int{
	"gateway": gatewayPort, "machine-api": 7101, "hook-broker": 7102, "etcd-guardian": 7103, "eviction-controller": 7104,
	"update-orchestrator": 7105, "node-configurator": 7106, "scheduler": 7107, "provider-local": 7110,
}

// Host returns the address of the control plane's programs.
func (c *Cluster) Host() string { return c.Subnet + ".1" }

// BootstrapHost returns the address of etcd's bootstrap member.
func (c *Cluster) BootstrapHost() string { return c.Subnet + ".2" }

// Gateway returns host and port of the cluster's one address.
func (c *Cluster) Gateway() string { return c.Address("gateway") }

// Address returns host and port at which a program is called.
func (c *Cluster) Address(program string) string {
	if c.Containers {
		return fmt.Sprintf("%s:%d", program, ports[program])
	}
	return fmt.Sprintf("%s:%d", c.Host(), ports[program])
}

// LocalAddress returns host and port at which a program is called from its own container or host.
func (c *Cluster) LocalAddress(program string) string {
	if c.Containers {
		return fmt.Sprintf("localhost:%d", ports[program])
	}
	return c.Address(program)
}

// listen returns host and port that a program opens, step ports after its own.
func (c *Cluster) listen(program string, step int) string {
	host := c.Host()
	if c.Containers {
		host = "0.0.0.0"
	}
	return fmt.Sprintf("%s:%d", host, ports[program]+step)
}

// freeSubnet returns a subnet of the loopback network that nobody uses. Each cluster begins its search at a place of its own, so
// that a cluster which is removed and made again mostly gets the same addresses.
func freeSubnet(dir string) (string, error) {
	taken := takenSubnets()
	h := fnv.New32a()
	h.Write([]byte(dir))
	const low, high = 16, 240 // 127.0.0.x is everybody's; leave the ends alone
	const size = (high - low) * 256
	start := h.Sum32() % size
	for i := range uint32(size) {
		n := (start + i) % size
		subnet := fmt.Sprintf("127.%d.%d", low+n/256, n%256)
		if !taken[subnet] && usable(subnet) {
			return subnet, nil
		}
	}
	return "", errors.New("no free addresses in 127.0.0.0/8")
}

func usable(subnet string) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("%s.1:%d", subnet, gatewayPort))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// takenSubnets returns those of this user's clusters, also of those that are down.
func takenSubnets() map[string]bool {
	taken := map[string]bool{}
	home, err := Home()
	if err != nil {
		return taken
	}
	files, _ := filepath.Glob(filepath.Join(home, "clusters", "*", settingsFile))
	for _, f := range files {
		var s Settings
		if raw, err := os.ReadFile(f); err == nil && json.Unmarshal(raw, &s) == nil {
			taken[s.Subnet] = true
		}
	}
	return taken
}
