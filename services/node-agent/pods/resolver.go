package pods

import (
	"fmt"
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

// resolverFile is the name of a pod's own, in its directory.
const resolverFile = "resolv.conf"

// resolver returns the mounts that show a container its pod's resolv.conf; none if the pod resolves names as the host
// does. A file that containers see already is not changed.
func (s *Pods) resolver(pod *schedulingv1.Pod) ([]process.Mount, error) {
	var host plan.Resolver
	if c, err := dns.ClientConfigFromFile(hostResolver); err == nil {
		host = plan.Resolver{Servers: c.Servers, Search: c.Search, Options: optionsOf(c)}
	}
	r, own, err := plan.ResolverOf(pod, s.cfg.DNS, names.Domain, host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	if !own {
		return nil, nil
	}
	if err := CanResolve(); err != nil {
		return nil, fmt.Errorf("%w: a resolv.conf of its own: %w", errConfig, err)
	}
	file := filepath.Join(s.dir(pod.GetMetadata().GetUid()), resolverFile)
	if text, err := os.ReadFile(file); err != nil || string(text) != r.Text() {
		if err := writeWhole(file, r.Text()); err != nil {
			return nil, err
		}
	}
	return []process.Mount{{From: file, To: hostResolver}}, nil
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
