package service

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
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

// outside is what an administrator allows the scheduler to reach beyond the cluster.
type outside struct {
	webhooks []string // addresses that custom admission controllers and extenders may have
	files    files.Directory
}

// parse returns the configuration, and what it allows.
func parse(args []string, out io.Writer) (c serve.Config, allowed outside, err error) {
	c.Name = "scheduler"
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	c.RecordFlags(fs)
	fs.StringArrayVar(&allowed.webhooks, "webhook-allow", nil,
		"https URL that admission webhooks and extenders of policies may have, with everything below its path; "+
			"repeat for more (default none)")
	fs.StringVar(&allowed.files.Path, "admission-config-dir", "",
		"absolute path of the directory with the files that admission plugins name as their location (default none)")
	if err := fs.Parse(args); err != nil {
		return c, outside{}, err
	}
	switch {
	case fs.NArg() > 0:
		return c, outside{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.Peers[nodeOwner] == "":
		return c, outside{}, errors.New("--peer eviction-controller=host:port is required")
	}
	if p := allowed.files.Path; p != "" && !filepath.IsAbs(p) {
		return c, outside{}, fmt.Errorf("--admission-config-dir %q must be an absolute path", p)
	}
	for _, u := range allowed.webhooks {
		if why := webhook.URLFault(u); why != "" {
			return c, outside{}, fmt.Errorf("--webhook-allow %q %s", u, why)
		}
	}
	return c, allowed, nil
}
