// Package hostagent speaks for a host with the inventory of its cluster: it says once a second that the host lives, and
// starts and wipes the machine of the host as it is ordered. What the inventory ordered last is on the disk, so that a
// host comes back without it.
package hostagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/node-agent/gateway"
	"github.com/windlass-dev/windlass/services/node-agent/pki"
	agentplan "github.com/windlass-dev/windlass/services/node-agent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

const (
	// beatEvery is the pace of messages: the inventory takes 40 s of silence for a loss.
	beatEvery = time.Second
	// tryEvery is the pause before an order that failed is tried again: a disk may have space by then.
	tryEvery = 5 * time.Second
	// checkEvery is how often the age of the certificate is checked, and a renewal that failed is tried again.
	checkEvery = 10 * time.Second
	// refusedPatience is how long the inventory must refuse a host for its machine to be ended.
	refusedPatience = time.Minute
	// callPatience bounds one renewal.
	callPatience = 10 * time.Second
	// maxMessage is how much of an error the inventory takes.
	maxMessage = 1000
)

// gateways returns the endpoints on the disk in the order in which the agent prefers them.
func (c Config) gateways() ([]string, error) {
	raw, err := os.ReadFile(c.GatewaysFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return c.preferred(strings.Fields(string(raw))), nil
}

// preferred returns endpoints in the order in which the agent prefers them.
func (c Config) preferred(list []string) []string {
	var out []string
	if c.Gateway != "" {
		out = append(out, c.Gateway)
	}
	for _, e := range list {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// Agent is the agent of one host.
type Agent struct {
	cfg     Config
	machine *hostMachine

	orders  chan *hostv1.HostOrder // to the goroutine that carries them out; has room for one
	reports chan *hostv1.HostReport
	last    *hostv1.HostReport // of the newest order; for the goroutine of the stream
	refused time.Time          // since when the inventory refuses this host; zero if it does not; for the same
	removed chan struct{}      // to the goroutine that carries out orders: the inventory does not have this host
}

// New returns the agent of a host on which nothing was started yet.
func New(cfg Config) *Agent {
	return &Agent{
		cfg: cfg, machine: &hostMachine{cfg}, orders: make(chan *hostv1.HostOrder, 1),
		reports: make(chan *hostv1.HostReport), removed: make(chan struct{}, 1),
	}
}

// Resume starts the machine as the disk says, or ends a wipe that was cut off, without a call.
func (a *Agent) Resume(ctx context.Context) error { return a.machine.follow(ctx, nil) }

// Run attends for the host until ctx ends. The machine runs on then.
func (a *Agent) Run(ctx context.Context) error {
	endpoints, err := a.cfg.gateways()
	if err != nil {
		return err
	}
	conn, err := gateway.New(endpoints, func(endpoint string) (*grpc.ClientConn, error) {
		return pki.Connect(endpoint, a.cfg.Files.ClientTLS)
	}, a.cfg.Log)
	if err != nil {
		return err
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.work(ctx) })
	group.Go(func() error {
		return stream.Again(ctx, a.cfg.Log, "inventory", nil, func(ctx context.Context) error { return a.follow(ctx, conn) })
	})
	group.Go(func() error { return a.sync(ctx, conn) })
	group.Go(func() error { return conn.FollowFile(ctx, a.cfg.GatewaysFile, a.cfg.gateways, a.cfg.Log) })
	if a.cfg.Access != nil {
		group.Go(func() error { return a.syncAccess(ctx, conn) })
	}
	if a.cfg.Renews {
		group.Go(func() error { return a.renew(ctx, conn) })
	}
	return group.Wait()
}

// renew keeps the certificate of the host valid until ctx ends.
func (a *Agent) renew(ctx context.Context, conn grpc.ClientConnInterface) error {
	said := ""
	for chance := rand.Float64(); ctx.Err() == nil; backoff.Sleep(ctx, checkEvery) {
		cert, err := identity.ReadCertificate(a.cfg.Files.Cert)
		if err == nil && time.Now().Before(agentplan.RenewAt(identity.IssuedAt(cert), cert.NotAfter, chance)) {
			continue
		}
		if err == nil {
			err = a.renewOnce(ctx, conn)
		}
		if err != nil {
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				a.cfg.Log.WarnContext(ctx, "certificate of the host not renewed", "error", err)
			}
			continue
		}
		said, chance = "", rand.Float64()
		a.cfg.Log.InfoContext(ctx, "certificate of the host renewed")
	}
	return nil
}

func (a *Agent) renewOnce(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	request, err := identity.RequestFor(a.cfg.Files.Key, a.cfg.Name)
	if err != nil {
		return err
	}
	r, err := machinev1.NewHostJoinServiceClient(conn).RenewHost(ctx, &machinev1.RenewHostRequest{AgentRequest: request})
	if err != nil {
		return err
	}
	if len(r.GetAuthority()) == 0 || len(r.GetAgentCertificate()) == 0 {
		return errors.New("the answer has no certificate")
	}
	if err := durable.WriteFile(a.cfg.Files.CA, r.GetAuthority(), 0o600); err != nil {
		return err
	}
	return durable.WriteFile(a.cfg.Files.Cert, r.GetAgentCertificate(), 0o600)
}

// work carries out orders, one at a time, and tries the newest again until it succeeds.
func (a *Agent) work(ctx context.Context) error {
	var o *hostv1.HostOrder // nil: what the disk says
	again := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case o = <-a.orders:
		case <-again:
		case <-a.removed:
			again = nil
			a.halt(ctx)
			continue
		}
		again = nil
		err := a.machine.follow(ctx, o)
		r := &hostv1.HostReport{
			OrderId: o.GetId(), Done: err == nil, Stopped: err == nil || errors.Is(err, errStopped),
		}
		if err != nil {
			text := err.Error()
			r.Message = strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
			again = time.After(tryEvery)
			a.cfg.Log.WarnContext(ctx, "order not carried out", "order", o.GetId(), "type", o.GetType().String(), "error", err)
		}
		if o == nil {
			continue
		}
		select {
		case a.reports <- r:
		case <-ctx.Done():
			return nil
		}
	}
}

// halt ends the machine of a host that is not in the inventory any more: it was confirmed to be off, and removed, so
// that what ran on it runs elsewhere.
func (a *Agent) halt(ctx context.Context) {
	halted, err := a.machine.halt(ctx)
	if err != nil || halted {
		a.cfg.Log.ErrorContext(ctx, "the machine of this host is ended: the host was removed from the inventory", "error",
			err)
	}
}

// follow is one stream, and what follows from its end.
func (a *Agent) follow(ctx context.Context, conn *gateway.Conn) error {
	err := a.attend(ctx, conn)
	if code := status.Code(err); code != codes.NotFound && code != codes.PermissionDenied {
		a.refused = time.Time{}
		return err
	}
	switch {
	case a.refused.IsZero():
		a.refused = time.Now()
	case time.Since(a.refused) > refusedPatience:
		a.refused = time.Now()
		a.cfg.Log.ErrorContext(ctx,
			"the inventory refuses this host: end it with `windlass host stop`, and remove its directory "+
				"before it joins again", "error", err)
		select {
		case a.removed <- struct{}{}:
		default:
		}
	}
	return err
}

// attend is one stream.
func (a *Agent) attend(ctx context.Context, conn *gateway.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	facts, err := a.facts()
	if err != nil {
		return err
	}
	s, err := hostv1.NewHostServiceClient(conn).AttendHost(ctx)
	if err != nil {
		return err
	}
	answers := make(chan *hostv1.AttendHostResponse)
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case answers <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	// A failed Send does not say why the stream ended.
	send := func(m *hostv1.AttendHostRequest) error {
		m.Name = a.cfg.Name
		if err := s.Send(m); err != nil {
			select {
			case err = <-ended:
			case <-ctx.Done():
			}
			return err
		}
		return nil
	}
	if err := send(&hostv1.AttendHostRequest{Facts: facts, Report: a.last}); err != nil {
		return err
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case m := <-answers:
			a.answered(conn, m)
		case a.last = <-a.reports:
			if err := send(&hostv1.AttendHostRequest{Report: a.last}); err != nil {
				return err
			}
		case <-beat.C:
			if err := send(&hostv1.AttendHostRequest{}); err != nil {
				return err
			}
		}
	}
}

// answered takes a message of the inventory.
func (a *Agent) answered(conn *gateway.Conn, m *hostv1.AttendHostResponse) {
	if list := m.GetGateways(); len(list) > 0 {
		content := []byte(strings.Join(list, "\n") + "\n")
		if have, err := os.ReadFile(a.cfg.GatewaysFile); err != nil || !bytes.Equal(have, content) {
			if err := durable.WriteFile(a.cfg.GatewaysFile, content, 0o600); err != nil {
				a.cfg.Log.Warn("gateways are not written down", "error", err)
			}
		}
		if err := conn.SetEndpoints(a.cfg.preferred(list)); err != nil {
			a.cfg.Log.Warn("gateways are not used", "error", err)
		}
	}
	o := m.GetOrder()
	if o == nil {
		return
	}
	a.cfg.Log.Info("order", "id", o.GetId(), "type", o.GetType().String(), "machine", o.GetMachineRef().GetName())
	select {
	case <-a.orders: // one that was not begun is replaced
	default:
	}
	a.orders <- o // there is room: this goroutine alone sends
}

// facts returns what the agent knows about its host.
func (a *Agent) facts() (*hostv1.HostFacts, error) {
	uid, err := a.machine.uid()
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot of the host: %w", err)
	}
	f := &hostv1.HostFacts{
		BootId: strings.TrimSpace(string(boot)), AgentVersion: version.Number, MachineUid: uid,
		Capacity:  map[string]*structpb.Value{"cpu": structpb.NewStringValue(strconv.Itoa(runtime.NumCPU()))},
		Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: a.cfg.Address}},
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Capacity["memory"] = structpb.NewStringValue(strconv.FormatUint(info.Totalram*uint64(info.Unit)>>10, 10) + "Ki")
	}
	return f, nil
}
