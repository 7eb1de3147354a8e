package service

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
)

const (
	name           = "machine-api"
	evictionPeer   = "eviction-controller"
	providerPrefix = "provider-" // of the names of peers that are provider plugins

	defaultLifetime = 24 * time.Hour // of a machine's certificates
	maxGateways     = 16             // agents take no more

	orphansReport = "report"
	orphansDelete = "delete"
	// defaultOrphanGrace is long enough to see the event, and to turn the deletion off.
	defaultOrphanGrace = time.Hour
	leastOrphanGrace   = time.Minute
)

// config holds the settings of machine-api.
type config struct {
	serve.Config
	pki                string            // directory of the authority windlass and its key
	gateways           []string          // host:port of each
	infrastructureName string            // of the cluster at its provider, for the first start; empty: made up
	platform           string            // of the cluster, for the first start
	lifetime           time.Duration     // of machines' certificates
	reserved           []net.IPNet       // that no machine may have an address of
	providerFor        map[string]string // by kind of provider spec: the one to be in force
	orphans            string            // what is done about instances without a machine: report or delete
	orphanGrace        time.Duration     // how long they are that before they are deleted
}

// parse reads the flags. It returns pflag.ErrHelp if only help was asked for.
func parse(args []string, out io.Writer) (config, error) {
	c := config{Config: serve.Config{Name: name, LogLevel: "info"}}
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.SortFlags = false
	c.Flags(fs)
	c.RecordFlags(fs)
	fs.StringVar(&c.pki, "pki", "", "directory of the authority windlass, key included")
	fs.StringSliceVar(&c.gateways, "gateway", nil,
		"host:port of a gateway, as machines reach it: they join there, and agents keep the list and get the one in force with each renewal of their certificates; may be repeated, at most 16")
	fs.StringVar(&c.infrastructureName, "infrastructure-name", "",
		"name of the cluster at its provider, used at the first start (default: windlass- and five random characters)")
	fs.StringVar(&c.platform, "platform", "Local", "platform of the cluster, used at the first start")
	fs.DurationVar(&c.lifetime, "certificate-lifetime", defaultLifetime, "lifetime of machines' certificates")
	fs.IPNetSliceVar(&c.reserved, "reserved", nil,
		"network such as 10.0.0.0/27 that the cluster's own programs have their addresses from, and no machine may have one of; may be repeated. Those in other flags are reserved anyway")
	fs.StringToStringVar(&c.providerFor, "provider-for", nil,
		"KIND=provider-NAME: this provider is in force for a kind of provider spec from now on, instead of the one that was so far; may be repeated (default: for each kind the provider that answered first, for good)")
	fs.StringVar(&c.orphans, "orphaned-instances", orphansReport,
		"what is done about instances that no machine needs: report, or delete after --orphan-grace")
	fs.DurationVar(&c.orphanGrace, "orphan-grace", defaultOrphanGrace,
		"how long an instance has no machine before it is deleted; a new leader counts again")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	return c, c.check(fs.Args())
}

func (c config) check(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", rest[0]))
	}
	for flag, value := range map[string]string{
		"--pki": c.pki, "--dir": c.Dir, "--tls-dir": c.TLSDir,
		"--listen": c.Listen,
	} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is required", flag))
		}
	}
	if len(c.gateways) == 0 {
		errs = append(errs, errors.New("--gateway is required: machines join there"))
	}
	if len(c.gateways) > maxGateways {
		errs = append(errs, fmt.Errorf("--gateway: %d are more than %d", len(c.gateways), maxGateways))
	}
	for i, g := range c.gateways {
		if err := serve.CheckAdvertised(g); err != nil {
			errs = append(errs, fmt.Errorf("--gateway: %w", err))
		}
		if slices.Contains(c.gateways[:i], g) {
			errs = append(errs, fmt.Errorf("--gateway: %s is there twice", g))
		}
	}
	if !c.Knows(evictionPeer) {
		errs = append(errs, fmt.Errorf("--peer %s=host:port is required", evictionPeer))
	}
	for kind, name := range c.providerFor {
		if kind == "" || !strings.HasPrefix(name, providerPrefix) || !c.Knows(name) {
			errs = append(errs, fmt.Errorf("--provider-for %s=%s: must be a kind of provider spec and a provider with --peer",
				kind, name))
		}
	}
	if c.lifetime <= 0 {
		errs = append(errs, errors.New("--certificate-lifetime must be more than zero"))
	}
	if c.orphans != orphansReport && c.orphans != orphansDelete {
		errs = append(errs, fmt.Errorf("--orphaned-instances must be %s or %s, not %q", orphansReport, orphansDelete,
			c.orphans))
	}
	if c.orphanGrace < leastOrphanGrace {
		errs = append(errs, fmt.Errorf("--orphan-grace must be at least %s", leastOrphanGrace))
	}
	return errors.Join(errs...)
}

// addresses returns the addresses of the cluster's own programs: those that flags hold as such, and those that are
// reserved for programs which are known by name.
func (c config) addresses() []netip.Prefix {
	if c.Host != "" {
		return nil // there an instance has the address of its host, which the inventory gives to one alone
	}
	var out []netip.Prefix
	add := func(a netip.Addr) { out = append(out, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())) }
	for _, n := range c.reserved {
		if p, err := netip.ParsePrefix(n.String()); err == nil { // as it always is
			out = append(out, p.Masked())
		}
	}
	for _, hostPort := range slices.Concat(c.gateways, slices.Collect(maps.Values(c.Peers)),
		[]string{c.Listen, c.Advertise}) {
		if ap, err := netip.ParseAddrPort(hostPort); err == nil && !ap.Addr().IsUnspecified() {
			add(ap.Addr())
		}
	}
	for _, endpoint := range c.EtcdEndpoints {
		if u, err := url.Parse(endpoint); err == nil {
			if a, err := netip.ParseAddr(u.Hostname()); err == nil {
				add(a)
			}
		}
	}
	return out
}
