package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// In the network of a cluster in containers, containers have the addresses below the first machine's (compose.yaml).
const (
	firstMachine     = "32"
	containersPrefix = "27"
)

// ownFlags are what a program is given besides the flags that every program has. A program without any has no entry.
var ownFlags = map[string]func(c *Cluster, executable string) []string{
	topology.Gateway: func(c *Cluster, _ string) []string {
		return []string{"--tokens", c.Service(topology.Gateway, "tokens")}
	},
	topology.MachineAPI: func(c *Cluster, _ string) []string {
		platform := "Local"
		if c.Member != nil {
			platform = "Inventory"
		}
		flags := []string{
			"--pki", c.Service(topology.MachineAPI, "pki"), "--gateway", c.Gateway(), "--certificate-lifetime",
			c.lifetime().String(), "--infrastructure-name", c.Name, "--platform", platform,
		}
		if c.Containers {
			// of the gateway and the peers only names are known
			flags = append(flags, "--reserved", c.Subnet+".0/"+containersPrefix)
		}
		return flags
	},
	topology.EtcdGuardian: func(c *Cluster, executable string) []string {
		client, peer := c.BootstrapURLs()
		flags := []string{
			"--pki", c.Service(topology.EtcdGuardian, "pki"), "--certificate-lifetime", c.lifetime().String(),
			"--bootstrap-client", client, "--bootstrap-peer", peer,
			"--member-command", executable + ",serve,etcd-member",
		}
		if c.Member != nil {
			flags = append(flags, "--host-dir", c.dir)
			if at := c.Member.Recovered; !at.IsZero() {
				flags = append(flags, "--recovered", at.UTC().Format(time.RFC3339Nano))
			}
		}
		return flags
	},
	// Agents run on the same host and report once a second: silence means more here than over a network.
	topology.EvictionController: func(c *Cluster, _ string) []string {
		if c.Member != nil {
			return nil
		}
		return []string{"--node-grace", "8s"}
	},
	topology.UpdateOrchestrator: func(c *Cluster, _ string) []string {
		if c.Containers {
			return c.releaseFlags()
		}
		return append(c.releaseFlags(), "--supervised")
	},
	topology.Scheduler: func(c *Cluster, _ string) []string {
		if c.Network == 0 {
			return nil
		}
		return []string{"--service-range", loopback.ServiceRange(c.Network).String()}
	},
	topology.ProviderInventory: func(c *Cluster, _ string) []string { return []string{"--cluster", c.Name} },
	topology.ProviderLocal: func(c *Cluster, executable string) []string {
		flags := []string{"--subnet", c.Subnet, "--cluster", c.Name, "--windlass", executable}
		if c.Containers {
			flags = append(flags, "--interface", "eth0", "--first-host", firstMachine) // those below are the containers' own
		}
		if c.Network > 0 {
			flags = append(flags, "--pod-range", loopback.PodRange(c.Network).String(), "--cluster-dns",
				loopback.DNS(loopback.ServiceRange(c.Network)).String())
		}
		if users := c.PodUsers(); users.Count > 0 {
			flags = append(flags, "--pods-dir", c.podsDir(), "--pod-users", users.String())
		}
		return flags
	},
}

// Spec returns how to run a program. executable is the one that holds all programs.
func (c *Cluster) Spec(name, executable string) process.Spec {
	args := []string{
		"serve", name,
		"--listen", c.listen(name, 0), "--advertise", c.Address(name), "--metrics-listen",
		c.listen(name, topology.MetricsStep),
		"--dir", c.Service(name), "--tls-dir", c.Service(name, "tls"), "--policy", c.Dir("policy.yaml"),
		"--connection-age", c.connectionAge().String(),
	}
	s, _ := topology.Find(name)
	if s.Etcd != topology.NoEtcd {
		client, _ := c.BootstrapURLs()
		args = append(args, "--etcd-endpoints", client)
	}
	if c.Member != nil {
		args = append(args, "--host", c.Member.Name)
	} else {
		for _, peer := range s.Peers() {
			args = append(args, "--peer", peer+"="+c.Address(peer))
		}
	}
	if f := ownFlags[name]; f != nil {
		args = append(args, f(c, executable)...)
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

// CheckSettings returns an error if a setting is not of the form "program.flag=value" with a known program, or what is
// to be removed is not of the form "program.flag".
func CheckSettings(given, removed []string) error {
	for _, s := range given {
		if err := checkSetting(s); err != nil {
			return err
		}
	}
	for _, s := range removed {
		if err := checkSetting(s + "="); err != nil || strings.Contains(s, "=") {
			return fmt.Errorf("--unset %q: must be program.flag with a known program", s)
		}
	}
	return nil
}

func checkSetting(s string) error {
	name, flag, ok := strings.Cut(s, ".")
	if !ok || !slices.Contains(topology.Names(), name) || !strings.Contains(flag, "=") {
		return fmt.Errorf("setting %q: must be program.flag=value with a program of %s", s,
			strings.Join(slices.Sorted(slices.Values(topology.Names())), ", "))
	}
	return nil
}

// MergeSettings adds settings to those of a cluster; a setting of the same program and flag is replaced. All settings
// of the flags removed, as "program.flag", are left out first.
func MergeSettings(has, given, removed []string) []string {
	key := func(s string) string { k, _, _ := strings.Cut(s, "="); return k }
	replaced := map[string]bool{}
	for _, g := range slices.Concat(given, removed) {
		replaced[key(g)] = true
	}
	out := slices.DeleteFunc(slices.Clone(has), func(s string) bool { return replaced[key(s)] })
	return append(out, given...)
}
