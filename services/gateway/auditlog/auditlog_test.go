package auditlog

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

var (
	admin   = identity.Caller{User: "admin", Groups: []string{identity.GroupMasters}}
	viewer  = identity.Caller{User: "vera", Groups: []string{"windlass:viewers"}}
	gateway = identity.Caller{User: identity.ServiceUser(topology.Gateway), Groups: []string{identity.GroupServices}}
)

// at is a time on the day of the tests.
func at(second int) time.Time { return time.Date(2026, 11, 30, 12, 0, second, 0, time.UTC) }

// line is a record of a user as it is in a log.
func line(seq, second int, user string) string {
	return fmt.Sprintf(`{"seq":%d,"time":%q,"user":%q}`, seq, at(second).Format(time.RFC3339), user)
}

// fleet is gateways of hosts that find each other.
type fleet struct {
	t     *testing.T
	view  discovery.View
	hosts map[string]*Server
	dirs  map[string]string
}

// newFleet serves the audit logs of hosts, each as another gateway calls it.
func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := &fleet{
		t: t, hosts: map[string]*Server{}, dirs: map[string]string{},
		view: discovery.View{Endpoints: map[string][]discovery.Endpoint{}, Confirmed: time.Now()},
	}
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := t.TempDir()
		trail, err := audit.Open(audit.Config{Dir: t.TempDir(), Service: "gateway", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { trail.Close() })
		s := New(Config{
			Policy: policy, Trail: trail, Host: name, Dirs: []string{dir}, Programs: []string{"machine-api"},
			View: func() discovery.View { return f.view },
			Dial: func(address string) (*grpc.ClientConn, error) {
				return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			},
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			next grpc.StreamHandler,
		) error {
			return next(srv, as{stream, identity.WithCaller(stream.Context(), gateway)})
		}))
		auditv1.RegisterAuditServiceServer(server, s)
		go server.Serve(l) //nolint:errcheck // it ends with the test
		t.Cleanup(server.Stop)
		f.hosts[name], f.dirs[name] = s, dir
		f.view.Endpoints[topology.Gateway] = append(f.view.Endpoints[topology.Gateway],
			discovery.Endpoint{Service: topology.Gateway, Address: l.Addr().String(), Host: name, Ready: true})
	}
	return f
}

type as struct {
	grpc.ServerStream
	ctx context.Context
}

func (a as) Context() context.Context { return a.ctx }

// write appends lines to the log of machine-api on a host.
func (f *fleet) write(host string, lines ...string) {
	f.t.Helper()
	dir := filepath.Join(f.dirs[host], "machine-api")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(dir, audit.ChangesFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
		f.t.Fatal(err)
	}
}

// answer is what a caller got.
type answer struct {
	grpc.ServerStream
	ctx     context.Context
	records []string // "h1 " and the line
	missing []string // "h1: " and the reason
	sent    func()   // called after each message
}

func (a *answer) Context() context.Context { return a.ctx }

func (a *answer) Send(m *auditv1.ReadAuditLogsResponse) error {
	for _, r := range m.GetRecords() {
		a.records = append(a.records, r.GetHost()+" "+string(r.GetLine()))
	}
	for _, lack := range m.GetMissing() {
		a.missing = append(a.missing, lack.GetHost()+": "+lack.GetReason())
	}
	if a.sent != nil {
		a.sent()
	}
	return nil
}

func (f *fleet) ask(host string, caller identity.Caller, q *auditv1.ReadAuditLogsRequest) (*answer, error) {
	f.t.Helper()
	a := &answer{ctx: identity.WithCaller(f.t.Context(), caller)}
	return a, f.hosts[host].ReadAuditLogs(q, a)
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRecordsOfAllHostsAreMergedAsTheyWereWritten(t *testing.T) {
	f := newFleet(t, "h1", "h2", "h3")
	odd := `{"seq":2,  "time":"2026-11-30T12:00:05Z","user":"<ann>","more":1}`
	f.write("h1", line(1, 1, "ann"), odd, line(3, 9, "ann"))
	f.write("h2", line(1, 2, "bob"), line(2, 1, "ann"), line(3, 6, "bob")) // the order within a log stays
	f.write("h3", line(1, 7, "ann"))
	a, err := f.ask("h2", admin, &auditv1.ReadAuditLogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.missing)
	expect(t, a.records, "h1 "+line(1, 1, "ann"), "h2 "+line(1, 2, "bob"), "h2 "+line(2, 1, "ann"), "h1 "+odd,
		"h2 "+line(3, 6, "bob"), "h3 "+line(1, 7, "ann"), "h1 "+line(3, 9, "ann"))
}

func TestRecordsAreSelected(t *testing.T) {
	f := newFleet(t, "h1", "h2")
	f.write("h1", line(1, 1, "ann"), line(2, 3, "bob"), line(3, 5, "ann"), line(4, 7, "ann"))
	f.write("h2", line(1, 5, "ann"))
	a, err := f.ask("h2", admin, &auditv1.ReadAuditLogsRequest{
		SinceTime: timestamppb.New(at(3)), UntilTime: timestamppb.New(at(7)), User: "ann", Hosts: []string{"h1", "h9"},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.records, "h1 "+line(3, 5, "ann"))
	expect(t, a.missing, "h9: there is no such host of the control plane")
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	f := newFleet(t, "h1", "h2", "h3")
	f.write("h1", line(1, 1, "ann"), line(3, 3, "ann"))
	f.write("h2", line(1, 2, "ann"), "garbage", line(3, 3, "ann"))
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	f.view.Away = map[string][]discovery.Endpoint{
		topology.Gateway: {{Service: topology.Gateway, Address: dead.Addr().String(), Host: "h4", Gone: at(0)}},
		"scheduler":      {{Service: "scheduler", Address: dead.Addr().String(), Host: "h5"}},
	}
	f.view.Confirmed = time.Time{}
	a, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.records, "h1 "+line(1, 1, "ann"), "h2 "+line(1, 2, "ann"), "h1 "+line(3, 3, "ann"))
	for _, want := range []string{
		": this gateway cannot read etcd", "h1: machine-api/audit.log: record 3 follows record 1",
		"h2: machine-api/audit.log is read no further", "h3: the gateway finds no audit log of machine-api",
		"h4: it does not answer since 2026-11-30T12:00:00Z", "h5: no gateway runs there",
	} {
		if !slices.ContainsFunc(a.missing, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q is not named in %q", want, a.missing)
		}
	}
	if len(a.missing) != 6 {
		t.Errorf("missing: %q", a.missing)
	}
}

// Refusals are counted, of several users together if there are many.
func TestCountedRecordsAreSelectedByWhatTheyStandFor(t *testing.T) {
	f := newFleet(t, "h1")
	counted := func(seq int, user string) string {
		return fmt.Sprintf(`{"seq":%d,"time":%q,"user":%q,"count":9,"lastTime":%q}`, seq, at(1).Format(time.RFC3339), user,
			at(5).Format(time.RFC3339))
	}
	f.write("h1", counted(1, "ann"), counted(2, "bob"), counted(3, ""), line(4, 2, "ann"))
	a, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{SinceTime: timestamppb.New(at(3)), User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.records, "h1 "+counted(1, "ann"), "h1 "+counted(3, ""))
}

func TestALogThatCannotBeReadIsThere(t *testing.T) {
	f := newFleet(t, "h1")
	f.write("h1", "garbage")
	a, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{})
	if err != nil || len(a.missing) != 1 || !strings.HasPrefix(a.missing[0], "h1: machine-api/audit.log is not read: ") {
		t.Errorf("missing %q, %v", a.missing, err)
	}
}

// event is a record of a log about itself.
func event(seq, second int, name, more string) string {
	return fmt.Sprintf(`{"seq":%d,"time":%q,"event":%q,%s}`, seq, at(second).Format(time.RFC3339), name, more)
}

func TestWhatALogSaysIsMissingIsNamed(t *testing.T) {
	const h = "h1: machine-api/audit.log: "
	for _, c := range []struct {
		name  string
		since *timestamppb.Timestamp
		lines []string
		want  []string
	}{
		{"a log from its beginning", nil, []string{event(1, 1, "begun", `"user":""`), line(2, 2, "ann")}, nil},
		{
			"records that could not be written", nil,
			[]string{line(1, 1, "ann"), event(2, 2, "lost", `"count":7`), line(3, 3, "ann")},
			[]string{h + "7 records before record 2 could not be written"},
		},
		{
			"they are older than what is asked for", timestamppb.New(at(3)),
			[]string{line(1, 1, "ann"), event(2, 2, "lost", `"count":7`), line(3, 3, "ann")},
			nil,
		},
		{
			"a log that was set aside", nil,
			[]string{event(1, 1, "begun", `"detail":"audit.log.unchained-1"`)},
			[]string{h + "the log was begun again with record 1: audit.log.unchained-1"},
		},
		{
			"older files that are gone", timestamppb.New(at(1)),
			[]string{line(9, 5, "ann")},
			[]string{h + "the records before record 9, of 2026-11-30T12:00:05Z, are no longer kept"},
		},
		{"all that is kept", nil, []string{line(9, 5, "ann")}, nil},
	} {
		f := newFleet(t, "h1")
		f.write("h1", c.lines...)
		a, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{SinceTime: c.since, User: "ann"})
		if err != nil || !slices.Equal(a.missing, c.want) {
			t.Errorf("%s: missing %q, %v, want %q", c.name, a.missing, err, c.want)
		}
	}
}

func TestOnlyThoseWithTheRightReadTheAuditLogs(t *testing.T) {
	f := newFleet(t, "h1")
	f.write("h1", line(1, 1, "ann"))
	for _, test := range []struct {
		caller identity.Caller
		local  bool
		code   codes.Code
	}{
		{caller: viewer, code: codes.PermissionDenied},
		{caller: viewer, local: true, code: codes.PermissionDenied},
		{caller: identity.Caller{}, code: codes.PermissionDenied},
		{caller: gateway, code: codes.PermissionDenied},
		{caller: identity.Caller{User: identity.ServiceUser(topology.Scheduler)}, local: true, code: codes.PermissionDenied},
		{caller: gateway, local: true, code: codes.OK},
		{caller: admin, code: codes.OK},
	} {
		a, err := f.ask("h1", test.caller, &auditv1.ReadAuditLogsRequest{Local: test.local})
		if status.Code(err) != test.code || (len(a.records) > 0) != (test.code == codes.OK) {
			t.Errorf("%s (local: %v) got %q, %v, want %v", test.caller.User, test.local, a.records, err, test.code)
		}
	}
}

func TestNewRecordsOfAllHostsAreFollowed(t *testing.T) {
	f := newFleet(t, "h1", "h2")
	f.write("h1", line(1, 1, "ann"))
	f.write("h2", line(1, 2, "ann"))
	ctx, cancel := context.WithTimeout(identity.WithCaller(t.Context(), admin), time.Minute)
	defer cancel()
	a := &answer{ctx: ctx}
	a.sent = func() {
		switch len(a.records) {
		case 2:
			f.write("h2", line(2, 3, "ann"))
		case 3:
			f.write("h1", line(2, 4, "ann"))
		case 4:
			cancel()
		}
	}
	err := f.hosts["h1"].ReadAuditLogs(&auditv1.ReadAuditLogsRequest{Follow: true}, a)
	if status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	expect(t, a.records, "h1 "+line(1, 1, "ann"), "h2 "+line(1, 2, "ann"), "h2 "+line(2, 3, "ann"),
		"h1 "+line(2, 4, "ann"))
	expect(t, a.missing)
}

func TestAGatewayThatHangsIsMissing(t *testing.T) {
	f := newFleet(t, "h1")
	f.write("h1", line(1, 1, "ann"))
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections, and nothing answers
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	f.view.Endpoints[topology.Gateway] = append(f.view.Endpoints[topology.Gateway],
		discovery.Endpoint{Service: topology.Gateway, Address: hangs.Addr().String(), Host: "h2"})
	f.hosts["h1"].patience = 100 * time.Millisecond
	a, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.records, "h1 "+line(1, 1, "ann"))
	expect(t, a.missing, "h2: it does not answer: it sends nothing")
}

func TestCallsAreLimited(t *testing.T) {
	f := newFleet(t, "h1")
	f.write("h1", line(1, 1, "ann"))
	ctx, cancel := context.WithCancel(identity.WithCaller(t.Context(), admin))
	ended := make(chan error, most)
	begun := make(chan struct{}, most)
	for range most {
		a := &answer{ctx: ctx}
		a.sent = func() {
			if len(a.records) == 1 {
				a.sent = nil
				begun <- struct{}{}
			}
		}
		go func() { ended <- f.hosts["h1"].ReadAuditLogs(&auditv1.ReadAuditLogsRequest{Follow: true}, a) }()
	}
	for range most {
		<-begun
	}
	if _, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one call more: %v", err)
	}
	if a, err := f.ask("h1", gateway, &auditv1.ReadAuditLogsRequest{Local: true}); err != nil || len(a.records) != 1 {
		t.Errorf("another gateway: %q, %v", a.records, err)
	}
	cancel()
	for range most {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	}
	if _, err := f.ask("h1", admin, &auditv1.ReadAuditLogsRequest{}); err != nil {
		t.Error(err)
	}
}

// A source makes its next message when the one before was sent, however slowly the caller reads.
func TestOneMessageOfEachHostIsHeld(t *testing.T) {
	const messages = 50
	var sent atomic.Int64
	slow := source{"h1", func(_ context.Context, to send) error {
		for i := range messages {
			// One is held, and another is just being sent.
			if done := int(sent.Load()); i > done+1 {
				t.Errorf("%d messages were made when %d were sent", i+1, done)
			}
			if err := to(&auditv1.ReadAuditLogsResponse{Records: []*auditv1.AuditRecord{{
				Time: timestamppb.New(at(0).Add(time.Duration(i))),
			}}}); err != nil {
				return err
			}
		}
		return nil
	}}
	err := merge(t.Context(), []source{slow}, func(*auditv1.ReadAuditLogsResponse) error {
		sent.Add(1)
		return nil
	})
	if err != nil || sent.Load() != messages {
		t.Errorf("%d messages, %v", sent.Load(), err)
	}
}
