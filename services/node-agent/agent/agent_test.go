package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/windlass-dev/windlass/services/node-agent/member"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// listener is the cluster as an agent sees it.
type listener struct {
	nodev1.UnimplementedNodeAgentServiceServer
	etcdv1.UnimplementedQuorumServiceServer

	mu            sync.Mutex
	refuse        bool // registrations are refused
	deaf          bool // heartbeats are not answered
	command       *nodev1.HeartbeatResponse
	orders        []*etcdv1.AttendMemberResponse // sent to each agent, and again on each new stream
	registrations []time.Time
	images        []string // in each registration
	beats         int
	offers        []bool // whether there was data
	versions      []string
}

func (l *listener) RegisterNode(_ context.Context, r *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range r.GetStatus().GetImages() {
		l.images = append(l.images, i.GetNames()...)
	}
	l.registrations = append(l.registrations, time.Now())
	if l.refuse {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	return &nodev1.Node{}, nil
}

func (l *listener) Heartbeat(s grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		l.mu.Lock()
		l.beats++
		deaf, answer := l.deaf, l.command
		l.mu.Unlock()
		if answer == nil {
			answer = &nodev1.HeartbeatResponse{}
		}
		if deaf {
			continue
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

func (l *listener) AttendMember(r *etcdv1.AttendMemberRequest,
	s grpc.ServerStreamingServer[etcdv1.AttendMemberResponse],
) error {
	l.mu.Lock()
	l.offers = append(l.offers, r.GetHasData())
	l.versions = append(l.versions, r.GetEtcdVersion())
	orders := slices.Clone(l.orders)
	l.mu.Unlock()
	for _, o := range orders {
		if err := s.Send(o); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

// connect runs the listener for the rest of a bubble's test.
func (l *listener) connect(t *testing.T) *grpc.ClientConn {
	t.Helper()
	pipe := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	nodev1.RegisterNodeAgentServiceServer(s, l)
	etcdv1.RegisterQuorumServiceServer(s, l)
	go func() { _ = s.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:///cluster", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Stop() })
	return conn
}

func (l *listener) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// run runs a part of an agent for as long as d of the bubble's time, and returns its error.
func run(t *testing.T, d time.Duration, part func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	err := part(ctx)
	synctest.Wait()
	return err
}

func newAgent(conn grpc.ClientConnInterface, m Member) *Agent {
	return New(Config{
		Node: "a", BootID: "boot-1", Conn: conn, Member: m, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Registration: &nodev1.RegisterNodeRequest{Name: "a"},
	})
}

func TestAnAgentBeatsOnceASecondOnOneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{}
		if err := run(t, time.Hour+time.Second/2, newAgent(l.connect(t), nil).Beat); err != nil {
			t.Error(err)
		}
		l.locked(func() {
			if l.beats != 3601 || len(l.registrations) != 1 {
				t.Errorf("%d heartbeats and %d registrations in an hour, want 3601 and 1", l.beats, len(l.registrations))
			}
		})
	})
}

func TestAStreamWithoutAnswersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{deaf: true}
		if err := run(t, time.Minute, newAgent(l.connect(t), nil).Beat); err != nil {
			t.Error(err)
		}
		l.locked(func() {
			if n := len(l.registrations); n < 8 || n > 13 {
				t.Errorf("%d streams in a minute, want about one in five seconds", n)
			}
		})
	})
}

func TestAnAgentKeepsTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{refuse: true}
		if err := run(t, time.Minute, newAgent(l.connect(t), nil).Beat); err != nil {
			t.Error(err)
		}
		l.locked(func() {
			for i := 1; i < len(l.registrations); i++ {
				pause := l.registrations[i].Sub(l.registrations[i-1])
				if pause < stream.FirstPause/2 || pause > stream.LongPause*3/2 {
					t.Errorf("try %d came after %v", i, pause)
				}
			}
			if n := len(l.registrations); n < 40 || n > 130 {
				t.Errorf("%d tries in a minute", n)
			}
		})
	})
}

func TestARebootOfThisBootEndsTheAgent(t *testing.T) {
	for _, tc := range []struct {
		name, boot string
		want       error
	}{
		{"of this boot", "boot-1", ErrReboot},
		{"of another boot", "boot-0", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &listener{command: &nodev1.HeartbeatResponse{Command: "Reboot", BootId: tc.boot}}
				if err := run(t, time.Minute, newAgent(l.connect(t), nil).Beat); !errors.Is(err, tc.want) {
					t.Errorf("Beat = %v, want %v", err, tc.want)
				}
			})
		})
	}
}

// disk is a member that keeps its state in memory and can be made to fail.
type disk struct {
	mu      sync.Mutex
	fails   int
	data    bool
	removed bool
	resumed int
	did     []string
	trust   string // of the files
	signed  int
	etcd    string // version that it would run after a restart
	next    string // the same after an order; empty if it stays
}

func (d *disk) PeerURL() string   { return "https://127.0.0.1:2380" }
func (d *disk) ClientURL() string { return "https://127.0.0.1:2379" }

func (d *disk) EtcdVersion() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.etcd
}

func (d *disk) Other() bool                { return false }
func (d *disk) Note(context.Context) error { return nil }

func (d *disk) NeedsCertificates() bool { return false }

func (d *disk) Trusts(hash string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trust == hash
}

func (d *disk) RenewalDue(time.Time) bool { return false }

func (d *disk) Certify(context.Context, string, member.Certifier) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.signed++
	return nil
}

func (d *disk) HasData() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.data
}

func (d *disk) Removed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.removed
}

func (d *disk) Resume(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resumed++
	return nil
}

func (d *disk) Follow(_ context.Context, o plan.Order) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails > 0 {
		d.fails--
		return errors.New("disk is full")
	}
	if d.next != "" {
		d.etcd = d.next
	}
	d.did = append(d.did, o.Command+o.Trust)
	switch {
	case o.Command == plan.Start:
		d.data = true
	case d.removed:
		d.data, d.removed = false, false
	}
	return nil
}

func TestAnOrderThatFailsIsFollowedOnTheNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{orders: []*etcdv1.AttendMemberResponse{{Command: "Start", Name: "a"}}}
		d := &disk{fails: 2}
		if err := run(t, time.Minute, newAgent(l.connect(t), d).Attend); err != nil {
			t.Error(err)
		}
		if !slices.Equal(d.did, []string{"Start"}) || !slices.Equal(l.offers, []bool{false, false, false}) || d.resumed != 3 {
			t.Errorf("did %v after offers %v", d.did, l.offers)
		}
	})
}

func TestAMemberIsOfferedAgainWithAnotherVersionOfEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{orders: []*etcdv1.AttendMemberResponse{{Command: "Start", Name: "a"}}}
		d := &disk{next: "3.6.6"}
		if err := run(t, time.Minute, newAgent(l.connect(t), d).Attend); err != nil {
			t.Error(err)
		}
		if !slices.Equal(l.versions, []string{"", "3.6.6"}) {
			t.Errorf("versions offered: %q", l.versions)
		}
	})
}

func TestAMemberGetsTheAuthoritiesThatItHasToTrustBeforeItIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{orders: []*etcdv1.AttendMemberResponse{
			{Command: "Start", Name: "a", Trust: "former"},
			{Command: "Start", Name: "a", Trust: "next"},
			{Command: "Start", Name: "a"},
		}}
		d := &disk{data: true, trust: "former"}
		if err := run(t, time.Minute, newAgent(l.connect(t), d).Attend); err != nil {
			t.Error(err)
		}
		if !slices.Equal(d.did, []string{"Startformer", "Startnext", "Start"}) || d.signed != 1 {
			t.Errorf("did %v and got certificates %d times, want once", d.did, d.signed)
		}
	})
}

func TestARemovedMemberIsOfferedWithoutData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{}
		d := &disk{data: true}
		time.AfterFunc(10*time.Second, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.removed = true
		})
		if err := run(t, time.Minute, newAgent(l.connect(t), d).Attend); err != nil {
			t.Error(err)
		}
		if !slices.Equal(l.offers, []bool{true, false}) {
			t.Errorf("offers %v, want one with data and then one without", l.offers)
		}
	})
}

// TestChangedImagesAreReported has the images of a node change twice, and stay for an hour.
func TestChangedImagesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{}
		var mu sync.Mutex
		var images []*nodev1.ContainerImage
		a := newAgent(l.connect(t), nil)
		a.cfg.Images = func() []*nodev1.ContainerImage {
			mu.Lock()
			defer mu.Unlock()
			return images
		}
		set := func(names ...string) {
			mu.Lock()
			defer mu.Unlock()
			images = []*nodev1.ContainerImage{{Names: names, SizeBytes: 5}}
		}
		set("one")
		go func() {
			time.Sleep(time.Minute)
			set("two")
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var parts sync.WaitGroup
		parts.Go(func() { _ = a.Beat(ctx) })
		parts.Go(func() { _ = a.ReportImages(ctx) })
		parts.Wait()
		l.locked(func() {
			got := l.images
			if len(got) != 2 || got[0] != "one" || got[1] != "two" {
				t.Errorf("registrations with %q, want one, and two once it changed", got)
			}
		})
	})
}
