package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/miekg/dns"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	names "github.com/windlass-dev/windlass/services/node-agent/dns"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// hostResolver is what the host resolves names by.
const hostResolver = "/etc/resolv.conf"

// CanResolve returns why pods of this host can have no resolv.conf of their own; nil if they can.
func CanResolve() error {
	if _, err := os.Stat(hostResolver); err != nil {
		return err
	}
	return process.CanMount()
}

// Names of a pod's own files, in its directory.
const (
	resolverFile = "resolv.conf"
	hostsFile    = "hosts"
)

// hostHosts is the host's file of hosts.
const hostHosts = "/etc/hosts"

// ownFiles returns the mounts that show a container its pod's resolv.conf and hosts; none if the pod has those of the
// host and the container its root directory. A file that containers see already is not changed, but replaced.
func (s *Pods) ownFiles(p *pod, pod *schedulingv1.Pod, isolated bool) ([]process.Mount, error) {
	resolver, err := s.resolver(pod)
	if err != nil {
		return nil, err
	}
	dir := s.dir(pod.GetMetadata().GetUid())
	var out []process.Mount
	if resolver != "" {
		m, err := s.ownFile(filepath.Join(dir, resolverFile), resolver, hostResolver)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	} else if _, err := os.Stat(hostResolver); err == nil && isolated {
		out = append(out, process.Mount{From: hostResolver, To: hostResolver, ReadOnly: true})
	}
	if !isolated && len(pod.GetSpec().GetHostAliases()) == 0 {
		return out, nil
	}
	host, err := os.ReadFile(hostHosts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m, err := s.ownFile(filepath.Join(dir, hostsFile), plan.Hosts(pod, p.record.Address, names.Domain, string(host)),
		hostHosts)
	return append(out, m), err
}

// ownFile returns the mount that shows a container a file with a text in the place of one of the host.
func (s *Pods) ownFile(file, text, place string) (process.Mount, error) {
	if why := s.driver().lacks().Roots; why != nil {
		return process.Mount{}, fmt.Errorf("%w: a file %s of its own: %w", errConfig, place, why)
	}
	if now, err := os.ReadFile(file); err != nil || string(now) != text {
		if err := writeWhole(file, text); err != nil {
			return process.Mount{}, err
		}
	}
	return process.Mount{From: file, To: place}, nil
}

// resolver returns the text of a pod's resolv.conf; empty if the pod resolves names as the host does.
func (s *Pods) resolver(pod *schedulingv1.Pod) (string, error) {
	var host plan.Resolver
	if c, err := dns.ClientConfigFromFile(hostResolver); err == nil {
		host = plan.Resolver{Servers: c.Servers, Search: c.Search, Options: optionsOf(c)}
	}
	r, own, err := plan.ResolverOf(pod, s.cfg.DNS, names.Domain, host)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errConfig, err)
	}
	if !own {
		return "", nil
	}
	return r.Text(), nil
}

// writeWhole replaces a file that everybody may read, in one step.
func writeWhole(file, text string) error {
	temp := file + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(temp, 0o644); err != nil { // whatever the umask is
		return err
	}
	return os.Rename(temp, file)
}

// optionsOf returns the options of a host's file that its containers need, too.
func optionsOf(c *dns.ClientConfig) []string {
	var out []string
	for _, o := range []struct {
		name        string
		value, none int
	}{{"ndots", c.Ndots, 1}, {"timeout", c.Timeout, 5}, {"attempts", c.Attempts, 2}} {
		if o.value != o.none {
			out = append(out, fmt.Sprintf("%s:%d", o.name, o.value))
		}
	}
	return out
}
