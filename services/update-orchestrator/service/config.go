package service

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/serve"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	// defaultPoll is the Cluster Version Operator's; each process adds a part of its own, so that a fleet does not ask at
	// once.
	defaultPoll      = 2 * time.Minute
	defaultReconcile = 4 * time.Minute
)

type config struct {
	serve.Config
	images   release.Places
	keys     []string
	stores   []string
	initial  string
	cluster  release.Cluster
	baseline string

	supervised bool

	prometheus struct{ address, token, ca string }

	poll      time.Duration
	reconcile time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	c := config{
		Config: serve.Config{Name: "update-orchestrator"}, cluster: release.Cluster{ID: apply.ExcludeID},
	}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.StringArrayVar(&c.images.Layouts, "release-images", nil,
		"directory with an OCI layout in which release images are looked up; may be repeated")
	fs.StringSliceVar(&c.images.Registries.Settings, "registries", nil,
		"files that say how registries are reached, of which the first that exists counts (default: registries.yaml in each directory of release images)")
	fs.StringArrayVar(&c.images.Registries.Credentials, "registry-credentials", nil,
		"file with credentials of registries, of the form of docker's config.json; may be repeated")
	fs.StringArrayVar(&c.keys, "release-keys", nil,
		"directory of public key rings, each of which must have signed a release; may be repeated")
	fs.StringArrayVar(&c.stores, "signature-store", nil,
		"directory or address where the signatures of releases are; may be repeated")
	fs.StringVar(&c.initial, "initial-release", "", "release image that a new cluster begins with; empty: none")
	fs.StringVar(&c.cluster.Profile, "cluster-profile", release.DefaultProfile,
		"profile of the cluster, which a manifest must include to be applied")
	fs.StringVar(&c.cluster.FeatureSet, "feature-set", release.DefaultFeatureSet,
		"feature set of the cluster: manifests of other sets and of their feature gates are left out")
	fs.StringVar(&c.baseline, "baseline-capability-set", "",
		"capabilities that a new cluster begins with: None, or vCurrent, which is also the default")
	fs.BoolVar(&c.supervised, "supervised", false,
		"a supervisor restarts the programs of the cluster from the executables of releases; else people do")
	fs.StringVar(&c.prometheus.address, "prometheus", "",
		"address of a Prometheus server that evaluates the queries of update risks; empty: they are evaluated here, over the metrics of Windlass itself")
	fs.StringVar(&c.prometheus.token, "prometheus-token", "", "file with the bearer token to send to it")
	fs.StringVar(&c.prometheus.ca, "prometheus-ca", "",
		"file with the authorities of its certificate; empty: those of this machine")
	fs.DurationVar(&c.poll, "poll", defaultPoll,
		"how often the graph of updates is asked for; up to as much again is added")
	fs.DurationVar(&c.reconcile, "reconcile", defaultReconcile, "how often all manifests of the release are applied again")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.cluster.Profile == "":
		return c, errors.New("--cluster-profile must not be empty")
	case c.cluster.FeatureSet == "":
		return c, errors.New("--feature-set must not be empty")
	case !slices.Contains([]string{"", plan.CapabilitiesNone, plan.CapabilitiesCurrent}, c.baseline):
		return c, fmt.Errorf("--baseline-capability-set %q: must be None or vCurrent", c.baseline)
	case c.prometheus.address == "" && (c.prometheus.token != "" || c.prometheus.ca != ""):
		return c, errors.New("--prometheus-token and --prometheus-ca need --prometheus")
	case c.poll < time.Second:
		return c, fmt.Errorf("--poll %v: must be a second or more", c.poll)
	case c.reconcile < time.Second:
		return c, fmt.Errorf("--reconcile %v: must be a second or more", c.reconcile)
	}
	for _, service := range apply.Packages() {
		if !c.Knows(service) && service != c.Name {
			return c, fmt.Errorf("--peer %s=host:port is required", service)
		}
	}
	c.images = c.images.WithDefaults()
	for i, place := range c.stores {
		var err error
		if c.stores[i], err = controller.StoreAddress(place); err != nil {
			return c, fmt.Errorf("--signature-store: %w", err)
		}
	}
	return c, nil
}
