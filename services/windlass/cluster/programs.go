package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
)

// program is what a cluster must know of one of its programs.
type program struct {
	etcd  bool     // has a user in etcd
	peers []string // the programs that it calls
	flags func(c *Cluster, executable string) []string
}

// In the network of a cluster in containers, containers have the addresses below the first machine's (compose.yaml).
const (
	firstMachine     = "32"
	containersPrefix = "27"
)

// programs is every program that the supervisor runs.
var programs = map[string]program{
	"gateway": {
		etcd: true, flags: func(c *Cluster, _ string) []string { return []string{"--tokens", c.Service("gateway", "tokens")} },
		peers: []string{
			"machine-api", "hook-broker", "etcd-guardian", "eviction-controller", "scheduler", "node-configurator", "update-orchestrator",
		},
	},
	"machine-api": {
		etcd: true, peers: []string{"eviction-controller", "provider-local", "etcd-guardian", "update-orchestrator"},
		flags: func(c *Cluster, _ string) []string {
			flags := []string{"--pki", c.Service("machine-api", "pki"), "--gateway", c.Gateway(), "--certificate-lifetime", c.lifetime().String(), "--infrastructure-name", c.Name, "--platform", "Local"}
			if c.Containers {
				flags = append(flags, "--reserved", c.Subnet+".0/"+containersPrefix) // of the gateway and the peers only names are known
			}
			return flags
		},
	},
	"hook-broker": {etcd: true, peers: []string{"machine-api", "update-orchestrator"}},
	"etcd-guardian": {
		etcd: true, peers: []string{"machine-api", "hook-broker", "update-orchestrator"},
		flags: func(c *Cluster, executable string) []string {
			return []string{
				"--pki", c.Service("etcd-guardian", "pki"), "--certificate-lifetime", c.lifetime().String(),
				"--bootstrap-client", fmt.Sprintf("https://%s:2379", c.BootstrapHost()),
				"--bootstrap-peer", fmt.Sprintf("https://%s:2380", c.BootstrapHost()),
				"--member-command", executable + ",serve,etcd-member",
			}
		},
	},
	"eviction-controller": {
		etcd: true, peers: []string{"etcd-guardian", "machine-api", "scheduler", "update-orchestrator"},
		// Agents are processes next door that speak once a second: silence means more here than over a network.
		flags: func(*Cluster, string) []string { return []string{"--node-grace", "8s"} },
	},
	"update-orchestrator": {
		etcd: true, flags: func(c *Cluster, _ string) []string { return c.releaseFlags() },
		peers: []string{
			"machine-api", "hook-broker", "etcd-guardian", "eviction-controller", "scheduler", "node-configurator", "update-orchestrator", "gateway", "provider-local",
		},
	},
	"node-configurator": {etcd: true, peers: []string{"machine-api", "eviction-controller", "etcd-guardian", "update-orchestrator"}},
	"scheduler":         {etcd: true, peers: []string{"machine-api", "eviction-controller", "update-orchestrator"}},
	"provider-local": {
		peers: []string{"machine-api", "update-orchestrator"}, // for the revocations, and for the report of how it is
		flags: func(c *Cluster, executable string) []string {
			flags := []string{"--subnet", c.Subnet, "--cluster", c.Name, "--windlass", executable}
			if c.Containers {
				flags = append(flags, "--interface", "eth0", "--first-host", firstMachine) // those below are the containers' own
			}
			if users := c.PodUsers(); users.Count > 0 {
				flags = append(flags, "--pods-dir", c.podsDir(), "--pod-users", users.String())
			}
			return flags
		},
	},
}

// Programs returns the names of all programs that the supervisor runs, in the order in which they are started: what etcd and the machines
// need comes first.
func Programs() []string {
	return []string{"provider-local", "etcd-guardian", "machine-api", "eviction-controller", "gateway", "hook-broker", "scheduler", "node-configurator", "update-orchestrator"}
}

// Spec returns how to run a program. executable is the one that holds all programs.
func (c *Cluster) Spec(name, executable string) process.Spec {
	p := programs[name]
	args := []string{
		"serve", name,
		"--listen", c.listen(name, 0), "--advertise", c.Address(name), "--metrics-listen", c.listen(name, metricsStep),
		"--dir", c.Service(name), "--tls-dir", c.Service(name, "tls"), "--policy", c.Dir("policy.yaml"),
		"--connection-age", c.connectionAge().String(),
	}
	if p.etcd {
		args = append(args, "--etcd-endpoints", fmt.Sprintf("https://%s:2379", c.BootstrapHost()))
	}
	for _, peer := range p.peers {
		args = append(args, "--peer", peer+"="+c.Address(peer))
	}
	if p.flags != nil {
		args = append(args, p.flags(c, executable)...)
	}
	args = append(args, c.extra(name)...)
	return process.Spec{Name: name, Path: executable, Args: args, Dir: c.dir, LogFile: c.Log(name)}
}

// connectionAge is less than what is left of a certificate's life when it is renewed, so that calls never meet its end.
func (c *Cluster) connectionAge() time.Duration {
	return min(serve.DefaultConnectionAge, c.lifetime()/12)
}

// extra returns the flags that the cluster's settings give to a program.
func (c *Cluster) extra(name string) []string {
	var out []string
	for _, s := range c.ProgramFlags {
		if flag, ok := strings.CutPrefix(s, name+"."); ok {
			out = append(out, "--"+flag)
		}
	}
	return out
}

// CheckSetting returns an error if a setting is not of the form "program.flag=value" with a known program.
func CheckSetting(s string) error {
	name, flag, ok := strings.Cut(s, ".")
	_, known := programs[name]
	if !ok || !known || !strings.Contains(flag, "=") {
		return fmt.Errorf("setting %q: must be program.flag=value with a program of %s", s, strings.Join(slices.Sorted(slices.Values(Programs())), ", "))
	}
	return nil
}
