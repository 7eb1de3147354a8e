package service

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/webhook"

	"github.com/windlass-dev/windlass/services/scheduler/admission/files"
)

// nodeOwner is the sibling that owns nodes.
const nodeOwner = "eviction-controller"

// maxDisksVariable is the environment variable that limits how many disks of a kind a node can have attached. Its name
// is that of Kubernetes' scheduler.
const maxDisksVariable = "KUBE_MAX_PD_VOLS"

// parseMaxDisks reads the value of maxDisksVariable; an empty one is 0, which means no limit of the operator.
func parseMaxDisks(value string) (int, error) {
	if value == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("environment variable %s is %q: must be a number of 1 or more", maxDisksVariable, value)
	}
	return n, nil
}

// errRange means that a range is not one of addresses that every machine of the host has.
var errRange = errors.New("must be a range of 16 loopback addresses or more, as 127.224.0.0/20")

// parseRange reads the range of the addresses of services.
func parseRange(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8 || p.Bits() > 28 {
		return netip.Prefix{}, errRange
	}
	return p.Masked(), nil
}

// options are what the flags of this program alone say.
type options struct {
	webhooks []string // addresses that custom admission controllers and extenders may have
	files    files.Directory
	services netip.Prefix // addresses that services get
}

// parse returns the configuration that every service has, and the options of this one.
func parse(args []string, out io.Writer) (c serve.Config, own options, err error) {
	var services string
	c.Name = "scheduler"
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	c.RecordFlags(fs)
	fs.StringArrayVar(&own.webhooks, "webhook-allow", nil,
		"https URL that admission webhooks and extenders of policies may have, with everything below its path; "+
			"repeat for more (default none)")
	fs.StringVar(&own.files.Path, "admission-config-dir", "",
		"absolute path of the directory with the files that admission plugins name as their location (default none)")
	fs.StringVar(&services, "service-range", loopback.ServiceRange(1).String(),
		"range of loopback addresses of which each service gets its own")
	if err := fs.Parse(args); err != nil {
		return c, options{}, err
	}
	switch {
	case fs.NArg() > 0:
		return c, options{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !c.Knows(nodeOwner):
		return c, options{}, errors.New("--peer eviction-controller=host:port is required")
	}
	if p := own.files.Path; p != "" && !filepath.IsAbs(p) {
		return c, options{}, fmt.Errorf("--admission-config-dir %q must be an absolute path", p)
	}
	if own.services, err = parseRange(services); err != nil {
		return c, options{}, fmt.Errorf("--service-range %q: %w", services, err)
	}
	for _, u := range own.webhooks {
		if why := webhook.URLFault(u); why != "" {
			return c, options{}, fmt.Errorf("--webhook-allow %q %s", u, why)
		}
	}
	return c, own, nil
}
