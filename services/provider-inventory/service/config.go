package service

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Options are the settings of this service alone. All but Host are required.
type Options struct {
	Cluster string        // name of the cluster, part of the provider ids
	Silence time.Duration // of the agent of a host, after which the host is Lost
	Host    string        // where this process runs; empty where services do not find each other in etcd
}

// defaultSilence is as long as a node may be silent before it is Unknown. Source: Kubernetes,
// node-monitor-grace-period.
const defaultSilence = 40 * time.Second

// clusterName is the form of --cluster: it is the authority of the provider ids.
var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func parse(args []string, out io.Writer) (serve.Config, Options, error) {
	c, o := serve.Config{Name: topology.ProviderInventory}, Options{}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	c.RecordFlags(fs)
	fs.StringVar(&o.Cluster, "cluster", "", "name of the cluster, part of the provider ids")
	fs.DurationVar(&o.Silence, "host-silence", defaultSilence,
		"how long the agent of a host may be silent before the host is Lost")
	if err := fs.Parse(args); err != nil {
		return c, o, err
	}
	o.Host = c.Host
	switch {
	case fs.NArg() > 0:
		return c, o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !clusterName.MatchString(o.Cluster):
		return c, o, fmt.Errorf("--cluster %q: must consist of lower-case letters, digits, '-' and '.'", o.Cluster)
	case o.Silence <= 0:
		return c, o, errors.New("--host-silence must be more than 0")
	}
	return c, o, nil
}
