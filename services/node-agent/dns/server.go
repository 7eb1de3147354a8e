package dns

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

const (
	forwards        = 256             // questions under way to other servers
	forwardPatience = 2 * time.Second // for one server
	aliases         = 8               // external names of services that lead to each other
	connections     = 128             // over TCP
	tries           = 20
	pause           = 100 * time.Millisecond
	datagram        = 1232 // bytes of an answer over UDP that no network cuts; source: DNS Flag Day 2020
)

// Config is what a server answers from.
type Config struct {
	// Address is where it listens, over UDP and TCP.
	Address string
	// Services returns the services as of now; nil as long as they are not known. all is false if there may be others.
	Services func() (services Services, all bool)
	// Others returns the servers for other names, as host:port, in the order in which they are asked. It is called for
	// each question: the host may move to another network.
	Others func() ([]string, error)
	Log    *slog.Logger
}

// ServersIn returns the servers of a file as resolv.conf(5) describes it.
func ServersIn(file string) ([]string, error) {
	c, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		out[i] = net.JoinHostPort(s, c.Port)
	}
	return out, nil
}

// Run answers until ctx ends, or until it cannot listen.
func Run(ctx context.Context, cfg Config) error {
	var listens net.ListenConfig
	packets, err := listens.ListenPacket(ctx, "udp", cfg.Address)
	if err != nil {
		return err
	}
	defer packets.Close()
	streams, err := listens.Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return err
	}
	defer streams.Close()
	h := &handler{Config: cfg, life: ctx, busy: make(chan struct{}, forwards)}
	group, running := errgroup.WithContext(ctx)
	for _, s := range []*dns.Server{
		{PacketConn: packets, Handler: h, UDPSize: datagram},
		{Listener: patient{netutil.LimitListener(streams, connections)}, Handler: h, MaxTCPQueries: 128},
	} {
		group.Go(s.ActivateAndServe)
	}
	// A server that has not begun yet cannot be shut down; without its socket it ends.
	defer context.AfterFunc(running, func() {
		_ = packets.Close()
		_ = streams.Close()
	})()
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// patient is a listener that waits where no connection can be taken for now, for example for lack of files.
type patient struct{ net.Listener }

// Accept implements net.Listener.
func (l patient) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		time.Sleep(pause)
	}
}

// Free returns an error if a server that is no agent answers at an address, or if this process may not listen there.
func Free(ctx context.Context, address string) error {
	var err error
	for range tries {
		var conn net.PacketConn
		if conn, err = new(net.ListenConfig).ListenPacket(ctx, "udp", address); err == nil {
			return conn.Close()
		}
		client := &dns.Client{Timeout: time.Second}
		m, _, asked := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(zone, dns.TypeSOA), address)
		if asked == nil && m.Authoritative { // another agent of the host
			return nil
		}
		select {
		case <-time.After(pause): // another agent may try this now, too
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// handler answers questions; each in a goroutine of its own.
type handler struct {
	Config
	life context.Context
	busy chan struct{}
}

// ServeDNS answers one message.
func (h *handler) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	_, overTCP := w.RemoteAddr().(*net.TCPAddr)
	m := h.answer(r, overTCP)
	size := dns.MinMsgSize
	if o := r.IsEdns0(); o != nil {
		size = min(max(int(o.UDPSize()), size), datagram)
		if m.IsEdns0() == nil {
			m.SetEdns0(datagram, false)
		}
	}
	if overTCP {
		size = dns.MaxMsgSize
	}
	m.Compress = true
	m.Truncate(size)
	_ = w.WriteMsg(m) // one who asked and went away
}

// answer returns the answer to a message.
func (h *handler) answer(r *dns.Msg, overTCP bool) *dns.Msg {
	if r.Opcode != dns.OpcodeQuery {
		return failure(r, dns.RcodeNotImplemented)
	}
	if len(r.Question) != 1 || r.Question[0].Qclass != dns.ClassINET {
		return failure(r, dns.RcodeRefused)
	}
	known, all := h.Services()
	a, ours := known.Resolve(r.Question[0])
	switch {
	case !ours:
		return h.forward(r, overTCP)
	case !all && a.Code == dns.RcodeNameError: // that a name does not exist cannot be said before all are known
		return failure(r, dns.RcodeServerFailure)
	}
	m := new(dns.Msg).SetRcode(r, a.Code)
	m.Authoritative, m.RecursionAvailable = true, true
	m.Answer, m.Ns, m.Extra = a.Records, a.Authority, a.Further
	rand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
	for range aliases {
		if a.Alias == "" {
			return m
		}
		q := r.Question[0]
		q.Name = a.Alias
		if a, ours = known.Resolve(q); ours {
			m.Answer, m.Rcode = append(m.Answer, a.Records...), a.Code
			continue
		}
		if !r.RecursionDesired {
			return m
		}
		next := new(dns.Msg).SetQuestion(q.Name, q.Qtype)
		out := h.forward(next, overTCP)
		m.Answer, m.Ns, m.Rcode = append(m.Answer, out.Answer...), out.Ns, out.Rcode
		m.Truncated = out.Truncated
		return m
	}
	return failure(r, dns.RcodeServerFailure) // they lead in a circle
}

// forward asks the servers of the host, one after the other.
func (h *handler) forward(r *dns.Msg, overTCP bool) *dns.Msg {
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	default:
		return failure(r, dns.RcodeServerFailure)
	}
	others, err := h.Others()
	if err != nil {
		h.Log.Warn("names outside of the cluster are not resolved", "error", err)
		return failure(r, dns.RcodeServerFailure)
	}
	client := &dns.Client{Timeout: forwardPatience, UDPSize: datagram}
	if overTCP {
		client.Net = "tcp"
	}
	ask := r.Copy()
	ask.Id = dns.Id()
	err = errors.New("the host has no server for names")
	var last *dns.Msg
	for _, server := range others {
		var out *dns.Msg
		if out, _, err = client.ExchangeContext(h.life, ask, server); err != nil {
			continue
		}
		out.Id = r.Id
		if last = out; out.Rcode != dns.RcodeServerFailure && out.Rcode != dns.RcodeRefused {
			return out
		}
	}
	if last != nil {
		return last
	}
	h.Log.Debug("name not resolved", "name", r.Question[0].Name, "error", err)
	return failure(r, dns.RcodeServerFailure)
}

func failure(r *dns.Msg, code int) *dns.Msg {
	m := new(dns.Msg).SetRcode(r, code)
	m.RecursionAvailable = true
	return m
}
