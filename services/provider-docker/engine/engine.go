// Package engine makes, lists and removes the containers of one cluster with the API of a Docker engine. The labels of
// a container are its record: nothing about it is kept elsewhere.
package engine

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// Errors that callers distinguish.
var (
	ErrUnavailable = errors.New("the Docker engine did not carry it out")
	ErrRefused     = errors.New("the Docker engine refuses the container")
)

// patience bounds a call. Removing a container takes about a second; an engine that does not answer for this long
// hangs.
const patience = 10 * time.Second

// HostNetwork is the network of containers that share the interfaces of the engine's host.
const HostNetwork = "host"

// Labels of containers.
const (
	labelCluster    = "dev.windlass.cluster"
	labelToken      = "dev.windlass.token"
	labelProviderID = "dev.windlass.provider-id"
	labelMachine    = "dev.windlass.machine"
	labelUID        = "dev.windlass.machine-uid"
	labelAddress    = "dev.windlass.address"
	labelFence      = "dev.windlass.fence"
	labelType       = "dev.windlass.instance-type"
	labelRegion     = "dev.windlass.region"
	labelZone       = "dev.windlass.zone"
)

// Container is a container as its labels describe it.
type Container struct {
	ID                 string // at the engine
	ProviderID, Token  string
	Machine, UID       string
	Address            string
	Type, Region, Zone string
	Fence              int64 // of the call that created it
	Created            time.Time
	State              container.ContainerState
	Problem            string // why its labels cannot be read; only ID, ProviderID, Created and State are set then
}

// Order is a container to be made.
type Order struct {
	Container
	Name     string
	Image    string
	Images   string // directory on the engine's host with OCI layouts, which is mounted; empty for none
	Network  string
	NanoCPUs int64 // 0 means no limit
	Memory   int64 // in bytes; 0 means no limit
}

// Engine is the engine as seen by one cluster. Its methods may be called concurrently; each call is limited in time.
type Engine struct {
	api     *client.Client
	cluster string
}

// Open returns the engine at host, such as unix:///var/run/docker.sock; empty means the one that the variables
// DOCKER_HOST and DOCKER_CERT_PATH select. It does not connect.
func Open(host, cluster string) (*Engine, error) {
	options := []client.Opt{client.FromEnv}
	if host != "" {
		options = append(options, client.WithHost(host))
	}
	api, err := client.New(options...)
	if err != nil {
		return nil, err
	}
	return &Engine{api: api, cluster: cluster}, nil
}

// Close closes the connections.
func (e *Engine) Close() error { return e.api.Close() }

// failed describes the error of a call.
func (e *Engine) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s: no answer from %s in time", ErrUnavailable, what, e.api.DaemonHost())
	case errdefs.IsInvalidArgument(err):
		return fmt.Errorf("%w: %s: %w", ErrRefused, what, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// mine selects the containers of the cluster.
func (e *Engine) mine() client.Filters {
	return make(client.Filters).Add("label", labelCluster+"="+e.cluster)
}

// List returns the cluster's containers by provider id.
func (e *Engine) List(ctx context.Context) ([]Container, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: e.mine()})
	if err != nil {
		return nil, e.failed("list of containers", err)
	}
	var out []Container
	for _, s := range found.Items {
		out = append(out, e.read(s))
	}
	slices.SortFunc(out, func(a, b Container) int { return cmp.Compare(a.ProviderID, b.ProviderID) })
	return out, nil
}

// read returns what the labels of a container contain.
func (e *Engine) read(s container.Summary) Container {
	c := Container{
		ID: s.ID, ProviderID: s.Labels[labelProviderID], Token: s.Labels[labelToken], Machine: s.Labels[labelMachine],
		UID: s.Labels[labelUID], Address: s.Labels[labelAddress], Type: s.Labels[labelType], Region: s.Labels[labelRegion],
		Zone: s.Labels[labelZone], Created: time.Unix(s.Created, 0).UTC(), State: s.State,
	}
	fence, err := strconv.ParseInt(s.Labels[labelFence], 10, 64)
	if err != nil || c.ProviderID == "" || c.Token == "" || c.Machine == "" {
		return Container{
			ID: s.ID, ProviderID: fmt.Sprintf("docker://%s/container/%s", e.cluster, s.ID), Created: c.Created, State: s.State,
			Problem: fmt.Sprintf("container %s: its labels dev.windlass.* are incomplete", s.ID),
		}
	}
	c.Fence = fence
	return c
}

// Create makes a container that is not started, and returns its ID. If its name exists, that is an error.
func (e *Engine) Create(ctx context.Context, o Order) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reap := true // the agent leaves its processes to the first process of the container
	options := client.ContainerCreateOptions{
		Name: o.Name,
		Config: &container.Config{
			Image: o.Image, Hostname: o.Machine,
			Entrypoint: []string{
				"/windlass", "serve", "node-agent", "--dir", machineDir, "--images", imagesDir, "--pods-dir", podsDir,
				"--pod-users", podUsers,
			},
			Labels: map[string]string{
				labelCluster: e.cluster, labelToken: o.Token, labelProviderID: o.ProviderID, labelMachine: o.Machine,
				labelUID: o.UID, labelAddress: o.Address, labelFence: strconv.FormatInt(o.Fence, 10), labelType: o.Type,
				labelRegion: o.Region, labelZone: o.Zone,
			},
		},
		HostConfig: &container.HostConfig{
			NetworkMode:   container.NetworkMode(o.Network),
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyAlways}, // an agent that ends is a reboot
			Init:          &reap, Tmpfs: map[string]string{"/tmp": ""},
			Resources: container.Resources{NanoCPUs: o.NanoCPUs, Memory: o.Memory},
		},
	}
	if o.Images != "" {
		options.HostConfig.Binds = []string{o.Images + ":" + imagesDir + ":ro"}
	}
	if o.Network != HostNetwork {
		address, err := netip.ParseAddr(o.Address)
		if err != nil {
			return "", err
		}
		options.NetworkingConfig = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			o.Network: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: address}},
		}}
	}
	made, err := e.api.ContainerCreate(ctx, options)
	return made.ID, e.failed("creation of container "+o.Name, err)
}

const (
	// Directories in the container.
	machineDir    = "/machine" // of the agent
	imagesDir     = "/images"  // of the pods' images
	podsDir       = "/pods"
	bootstrapFile = "machine/bootstrap.json"

	// podUsers are those that pods run as, one each: far more than a machine has pods. Every container has the same ones;
	// its processes see no other container's.
	podUsers = "1879048192-1879049215"
)

// Start puts the bootstrap document, as JSON, into a container that was not started yet, and starts it. It may be
// repeated.
func (e *Engine) Start(ctx context.Context, id string, bootstrap any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := json.MarshalIndent(bootstrap, "", "  ")
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = errors.Join(
		w.WriteHeader(&tar.Header{Name: "machine/", Typeflag: tar.TypeDir, Mode: 0o700}),
		w.WriteHeader(&tar.Header{Name: bootstrapFile, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(raw))}))
	if err != nil {
		return err
	}
	if _, err := w.Write(raw); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err = e.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	if err != nil {
		return e.failed("bootstrap of container "+id, err)
	}
	_, err = e.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return e.failed("start of container "+id, err)
}

// Remove ends a container and removes it. One that does not exist, or is being removed, is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
		return nil
	}
	return e.failed("removal of container "+id, err)
}

// Identity returns what distinguishes this engine from all others. It outlives the engine's restarts.
func (e *Engine) Identity(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	about, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", e.failed("identity", err)
	}
	return about.Info.ID, nil
}

// Follow calls changed at each event of the cluster's containers until ctx ends or the engine breaks off.
func (e *Engine) Follow(ctx context.Context, changed func()) error {
	stream := e.api.Events(ctx, client.EventsListOptions{Filters: e.mine().Add("type", "container")})
	changed() // what happened before the stream began
	for {
		select {
		case <-stream.Messages:
			changed()
		case err := <-stream.Err:
			return e.failed("events", err)
		}
	}
}

// Network returns the IPv4 network that containers of a network get addresses from, and the addresses that are taken.
func (e *Engine) Network(ctx context.Context, name string) (netip.Prefix, []netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := e.api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err != nil {
		return netip.Prefix{}, nil, e.failed("network "+name, err)
	}
	for _, c := range n.Network.IPAM.Config {
		if !c.Subnet.Addr().Is4() {
			continue
		}
		pool := c.Subnet
		if c.IPRange.IsValid() {
			pool = c.IPRange
		}
		taken := []netip.Addr{c.Gateway, pool.Masked().Addr().Next()} // without a gateway the engine takes the first address
		for _, a := range c.AuxAddress {
			taken = append(taken, a)
		}
		for _, at := range n.Network.Containers {
			taken = append(taken, at.IPv4Address.Addr())
		}
		return pool, taken, nil
	}
	return netip.Prefix{}, nil, fmt.Errorf("%w: network %s has no IPv4 subnet", ErrRefused, name)
}
