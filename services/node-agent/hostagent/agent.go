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
	"log/slog"
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
	// callPatience bounds one renewal.
	callPatience = 10 * time.Second
	// maxMessage is how much of an error the inventory takes.
	maxMessage = 1000
)

// Identity is who an agent speaks for, and through which gateways.
type Identity struct {
	Name  string         // of the host
	Files identity.Files // certificate of the host
	// Own is the gateway of this host, which is preferred; empty if it has none.
	Own string
	// GatewaysFile has the endpoints of the cluster's gateways, one per line, as they were known last.
	GatewaysFile string
	// Renews means that the certificate is renewed by the cluster; otherwise it is by the authority on this host.
	Renews bool
}

// gateways returns the endpoints in the order in which the agent prefers them.
func (i Identity) gateways() ([]string, error) {
	var out []string
	if i.Own != "" {
		out = append(out, i.Own)
	}
	raw, err := os.ReadFile(i.GatewaysFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range strings.Fields(string(raw)) {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out, nil
}

// Agent is the agent of one host.
type Agent struct {
	who     Identity
	machine *Machine
	log     *slog.Logger

	orders  chan *hostv1.HostOrder // to the goroutine that carries them out; has room for one
	reports chan *hostv1.HostReport
	last    *hostv1.HostReport // of the newest order; for the goroutine of the stream
}

// New returns the agent of a host.
func New(who Identity, machine *Machine, log *slog.Logger) *Agent {
	return &Agent{
		who: who, machine: machine, log: log, orders: make(chan *hostv1.HostOrder, 1), reports: make(chan *hostv1.HostReport),
	}
}

// Run attends for the host until ctx ends. The machine runs on then.
func (a *Agent) Run(ctx context.Context) error {
	endpoints, err := a.who.gateways()
	if err != nil {
		return err
	}
	conn, err := gateway.New(endpoints, func(endpoint string) (*grpc.ClientConn, error) {
		return pki.Connect(endpoint, a.who.Files.ClientTLS)
	}, a.log)
	if err != nil {
		return err
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.work(ctx) })
	group.Go(func() error {
		return stream.Again(ctx, a.log, "inventory", nil, func(ctx context.Context) error { return a.attend(ctx, conn) })
	})
	if a.who.Renews {
		group.Go(func() error { return a.renew(ctx, conn) })
	}
	return group.Wait()
}

// renew keeps the certificate of the host valid until ctx ends.
func (a *Agent) renew(ctx context.Context, conn grpc.ClientConnInterface) error {
	said := ""
	for chance := rand.Float64(); ctx.Err() == nil; backoff.Sleep(ctx, checkEvery) {
		info, err := os.Stat(a.who.Files.Cert)
		if err != nil {
			return err
		}
		cert, err := identity.ReadCertificate(a.who.Files.Cert)
		if err != nil {
			return err
		}
		// By the time of the file, since a certificate is dated back a little.
		if time.Now().Before(agentplan.RenewAt(info.ModTime(), cert.NotAfter, chance)) {
			continue
		}
		if err := a.renewOnce(ctx, conn); err != nil {
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				a.log.WarnContext(ctx, "certificate of the host not renewed", "expires", cert.NotAfter, "error", err)
			}
			continue
		}
		said, chance = "", rand.Float64()
		a.log.InfoContext(ctx, "certificate of the host renewed")
	}
	return nil
}

func (a *Agent) renewOnce(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	request, err := identity.RequestFor(a.who.Files.Key, a.who.Name)
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
	if err := durable.WriteFile(a.who.Files.CA, r.GetAuthority(), 0o600); err != nil {
		return err
	}
	return durable.WriteFile(a.who.Files.Cert, r.GetAgentCertificate(), 0o600)
}

// work carries out orders, one at a time, and tries the newest again until it succeeds.
func (a *Agent) work(ctx context.Context) error {
	var o *hostv1.HostOrder
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case o = <-a.orders:
		case <-again:
		}
		again = nil
		err := a.machine.Follow(ctx, o)
		r := &hostv1.HostReport{OrderId: o.GetId(), Done: err == nil, Stopped: err == nil}
		if err != nil {
			text := err.Error()
			r.Message = strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
			again = time.After(tryEvery)
			a.log.WarnContext(ctx, "order not carried out", "order", o.GetId(), "type", o.GetType().String(), "error", err)
		}
		select {
		case a.reports <- r:
		case <-ctx.Done():
			return nil
		}
	}
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
		m.Name = a.who.Name
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
			if err := a.answered(conn, m); err != nil {
				return err
			}
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
func (a *Agent) answered(conn *gateway.Conn, m *hostv1.AttendHostResponse) error {
	if list := m.GetGateways(); len(list) > 0 {
		content := []byte(strings.Join(list, "\n") + "\n")
		if have, err := os.ReadFile(a.who.GatewaysFile); err != nil || !bytes.Equal(have, content) {
			if err := durable.WriteFile(a.who.GatewaysFile, content, 0o600); err != nil {
				return err
			}
		}
		endpoints, err := a.who.gateways()
		if err != nil {
			return err
		}
		if err := conn.SetEndpoints(endpoints); err != nil {
			return err
		}
	}
	o := m.GetOrder()
	if o == nil {
		return nil
	}
	a.log.Info("order", "id", o.GetId(), "type", o.GetType().String(), "machine", o.GetMachineRef().GetName())
	select {
	case <-a.orders: // one that was not begun is replaced
	default:
	}
	a.orders <- o // there is room: this goroutine alone sends
	return nil
}

// facts returns what the agent knows about its host.
func (a *Agent) facts() (*hostv1.HostFacts, error) {
	uid, err := a.machine.UID()
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
		Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: a.machine.cfg.Address}},
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Capacity["memory"] = structpb.NewStringValue(strconv.FormatUint(info.Totalram*uint64(info.Unit)>>10, 10) + "Ki")
	}
	return f, nil
}
