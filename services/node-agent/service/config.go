package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/shim"
)

type config struct {
	dir           string
	executable    string // path under which this program is found also after an update
	memberCommand []string
	shimCommand   []string
	helloCommand  []string
	loggerCommand []string
	images        []string
	registries    []string
	podsDir       string
	podUsers      process.Users
	podPIDsLimit  int64
	podRange      string
	erase         bool
	runtime       string // endpoint of a container runtime; empty: containers are processes
	hostDir       string
	gatewaysFile  string             // kept by another process; empty: there is none
	root          string             // of the machine's files; empty: a directory in dir
	allowed       []string           // paths below it that configurations may change, too
	observe       bool               // nothing below it is changed
	addresses     loopback.Addresses // of pods; the zero value: they have the machine's
	clusterDNS    string
	dns           netip.Addr // the server of the names of services; the zero value: there is none
	logLevel      string
}

// processRuntime is the runtime that is part of the agent.
const processRuntime = "process"

// defaultPIDsLimit is OpenShift's. Source: OpenShift documentation, machine configuration "podPidsLimit".
const defaultPIDsLimit = 4096

func parse(args []string, out io.Writer) (config, error) {
	var c config
	fs := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&c.dir, "dir", "", "directory of the machine; its provider put bootstrap.json there")
	fs.StringVar(&c.executable, "executable", "",
		"path of this program that stays when it is updated: processes are started by it (default: the present path)")
	fs.StringSliceVar(&c.memberCommand, "member-command", nil,
		"program that runs an etcd member, and its first arguments (default: this program, serve, etcd-member)")
	fs.StringSliceVar(&c.helloCommand, "hello-command", nil,
		"program to run for images named hello-pod, and its first arguments (default: this program, serve, hello-pod)")
	fs.StringSliceVar(&c.loggerCommand, "logger-command", nil,
		"program that writes the logs of containers, and its first arguments (default: this program, serve, container-logger)")
	fs.StringSliceVar(&c.images, "images", nil,
		"directories with OCI layouts, each at the name of its image (beside the machine's own directory images)")
	fs.StringSliceVar(&c.registries, "registries", nil,
		"files that say how registries are reached, of which the first that exists counts (default: registries.yaml in each directory of images)")
	fs.StringVar(&c.podsDir, "pods-dir", "",
		"directory of the machine's pods (default: pods in --dir); the users of --pod-users must be able to pass through to it")
	fs.Var(&c.podUsers, "pod-users",
		"users that the machine's pods run as, one each (default: pods run as this program's user)")
	fs.StringVar(&c.runtime, "runtime", processRuntime,
		"what runs containers: process, or cri=unix:///PATH, the socket of containerd or CRI-O; requires --pod-users")
	fs.BoolVar(&c.erase, "end-containers", false,
		"end and remove what a container runtime has of the pods in --pods-dir, and exit; no agent must run there")
	fs.Int64Var(&c.podPIDsLimit, "pod-pids-limit", defaultPIDsLimit,
		"processes and threads that a pod has at most, where control groups can limit them (-1 or 0: no limit of its own)")
	fs.StringVar(&c.podRange, "pod-range", "",
		"range of loopback addresses of which each pod gets its own (default: pods have the machine's)")
	fs.StringVar(&c.hostDir, "host-dir", "",
		"directory that the agents of this host and cluster share; required with --pod-range")
	fs.StringVar(&c.clusterDNS, "cluster-dns", "",
		"loopback address at which the agents of this host answer the names of services; requires --host-dir (default: pods resolve names as the host does)")
	fs.StringVar(&c.gatewaysFile, "gateways-file", "",
		"file with the endpoints of all gateways, one per line, that another process on this host keeps current (default: those that the cluster named when it made the certificates)")
	fs.StringVar(&c.root, "root", "",
		"/: configurations change the files of the host, systemd runs their units, and a restart is one of the host (default: a directory in --dir, and units are processes of this program)")
	fs.StringArrayVar(&c.allowed, "allow-path", nil,
		"absolute path of a file or directory that configurations may change too, with --root / (beside /etc, /opt and /usr/local without what decides about access to the host); may be repeated")
	fs.BoolVar(&c.observe, "observe", false, "report what configurations would change, with --root /, and change nothing")
	fs.StringVar(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.erase && c.podsDir == "":
		return c, errors.New("--end-containers requires --pods-dir")
	case c.erase: // containers are known by the path that their agent has
		var err error
		c.podsDir, err = filepath.Abs(c.podsDir)
		return c, err
	case c.dir == "":
		return c, errors.New("--dir is required")
	case c.root != "" && c.root != "/":
		return c, fmt.Errorf("--root %q: must be /, or not be given", c.root)
	case c.root == "" && (c.observe || len(c.allowed) > 0):
		return c, errors.New("--observe and --allow-path require --root /")
	}
	for _, p := range c.allowed {
		if err := machineconfig.CheckAllowed(p); err != nil {
			return c, fmt.Errorf("--allow-path %w", err)
		}
	}
	var err error
	if c.runtime, err = runtimeEndpoint(c.runtime); err != nil {
		return c, fmt.Errorf("--runtime %w", err)
	}
	if c.runtime != "" && c.podUsers.Count == 0 {
		return c, errors.New("--runtime cri requires --pod-users")
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return c, err
	}
	if c.podRange != "" {
		r, err := netip.ParsePrefix(c.podRange)
		if err != nil || !r.Addr().Is4() || !r.Addr().IsLoopback() || c.hostDir == "" {
			return c, fmt.Errorf("--pod-range %q: must be a range of loopback addresses, with --host-dir", c.podRange)
		}
		c.addresses = loopback.Addresses{Dir: filepath.Join(c.hostDir, loopback.PodsDir), Range: r}
	}
	if c.clusterDNS != "" {
		if c.dns, err = netip.ParseAddr(c.clusterDNS); err != nil || !c.dns.Is4() || !c.dns.IsLoopback() || c.hostDir == "" {
			return c, fmt.Errorf("--cluster-dns %q: must be a loopback address, with --host-dir", c.clusterDNS)
		}
	}
	if c.podsDir == "" {
		c.podsDir = filepath.Join(c.dir, "pods")
	}
	if c.podsDir, err = filepath.Abs(c.podsDir); err != nil {
		return c, err
	}
	self := c.executable
	if self == "" {
		if self, err = os.Executable(); err != nil {
			return c, err
		}
	}
	if len(c.memberCommand) == 0 {
		c.memberCommand = []string{self, "serve", "etcd-member"}
	}
	c.shimCommand = []string{self, shim.Command}
	if len(c.helloCommand) == 0 {
		c.helloCommand = []string{self, "serve", "hello-pod"}
	}
	if len(c.loggerCommand) == 0 {
		c.loggerCommand = []string{self, "serve", "container-logger"}
	}
	c.images = append([]string{filepath.Join(c.dir, "images")}, c.images...)
	if len(c.registries) == 0 {
		for _, dir := range c.images {
			c.registries = append(c.registries, filepath.Join(dir, "registries.yaml"))
		}
	}
	return c, nil
}

func (c config) logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})).With("service", "node-agent"), nil
}
