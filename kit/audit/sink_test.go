package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	collogspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/grpc"
)

// three writes three changes to a trail with a sink, and returns once the sink has had its chance.
func three(t *testing.T, setting string) {
	t.Helper()
	sink, err := ParseSink(setting)
	if err != nil {
		t.Fatal(err)
	}
	a := openTrail(t, t.TempDir(), sink)
	for i := range 3 {
		if err := a.Change(t.Context(), change(fmt.Sprintf("m-%d", i)), false); err != nil {
			t.Fatal(err)
		}
	}
	taken(t, a, 6) // each of the three logs has a first record
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// taken waits until the sink has so many records: the end of a trail gives it a second only.
func taken(t *testing.T, a *Trail, want uint64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		sent, dropped := a.sinks[0].counts()
		if sent == want && dropped == 0 {
			return
		}
		if sent > want || dropped > 0 || time.Now().After(deadline) {
			t.Fatalf("%d sent and %d dropped, want %d and 0", sent, dropped, want)
		}
	}
}

// names checks that lines have the three changes in their order, each under the hash of the one before.
func names(t *testing.T, lines []string) {
	t.Helper()
	v := verifier{retired: map[string]string{}}
	for _, line := range lines {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r.User == "ed" || r.Event == EventBegun && len(lines) == 4 {
			if why := v.follow([]byte(line)); why != "" {
				t.Errorf("%q: %s", line, why)
			}
		}
	}
	if v.report.Records != 4 {
		t.Errorf("%d records, want 4", v.report.Records)
	}
}

func TestTheFileSinkTakesVerifiableCopies(t *testing.T) {
	dir := t.TempDir()
	three(t, "file:"+dir)
	reports := intact(t, dir)
	if len(reports) != 3 || reports[0].Log != filepath.Join(dir, "test.audit.log") || reports[0].Records != 4 {
		t.Errorf("reports %+v", reports)
	}
}

func TestTheSyslogSinkSendsRFC5424(t *testing.T) {
	t.Run("over TCP", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		messages := make(chan []string, 1)
		go func() { messages <- octetCounted(l) }()
		three(t, "syslog+tcp://"+l.Addr().String())
		var changes []string
		for _, m := range <-messages {
			head, body, ok := strings.Cut(m, " - {")
			fields := strings.Fields(head)
			if !ok || len(fields) != 6 || fields[0] != "<109>1" && fields[0] != "<108>1" || fields[3] != "windlass-test" {
				t.Errorf("message %q", m)
				continue
			}
			if fields[5] == ChangesFile {
				changes = append(changes, "{"+body)
			}
		}
		names(t, changes)
	})
	t.Run("over a socket of the host", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		three(t, "syslog+unix:"+path)
		message := make([]byte, 4096)
		if n, err := conn.Read(message); err != nil || !bytes.HasPrefix(message[:n], []byte("<10")) {
			t.Errorf("message %q, %v", message[:n], err)
		}
	})
}

// octetCounted reads the messages of one connection in the framing of RFC 6587.
func octetCounted(l net.Listener) (messages []string) {
	conn, err := l.Accept()
	if err != nil {
		return nil
	}
	defer conn.Close()
	from := bufio.NewReader(conn)
	for {
		var n int
		if _, err := fmt.Fscanf(from, "%d ", &n); err != nil {
			return messages
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(from, message); err != nil {
			return messages
		}
		messages = append(messages, string(message))
	}
}

// collector takes OTLP logs.
type collector struct {
	collogspb.UnimplementedLogsServiceServer
	got chan *collogspb.ExportLogsServiceRequest
}

func (c *collector) Export(_ context.Context, r *collogspb.ExportLogsServiceRequest) (
	*collogspb.ExportLogsServiceResponse, error,
) {
	c.got <- r
	return &collogspb.ExportLogsServiceResponse{}, nil
}

func TestTheOTLPSinkExportsToACollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, c := grpc.NewServer(), &collector{got: make(chan *collogspb.ExportLogsServiceRequest, 10)}
	collogspb.RegisterLogsServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	three(t, "otlp://"+l.Addr().String())
	server.Stop()
	<-done
	close(c.got)
	var changes []string
	for r := range c.got {
		for _, record := range r.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			if record.GetAttributes()[0].GetValue().GetStringValue() == ChangesFile {
				changes = append(changes, record.GetBody().GetStringValue())
			}
			if record.GetTimeUnixNano() == 0 {
				t.Errorf("a record without a time: %v", record)
			}
		}
	}
	names(t, changes)
}

// TestASinkThatIsDownGetsItsRecordsLater starts without the directory of the sink.
func TestASinkThatIsDownGetsItsRecordsLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	a := openTrail(t, t.TempDir(), newFileSink(dir))
	if err := a.Change(t.Context(), change("while-down"), false); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	taken(t, a, 4)
	_ = a.Close()
	intact(t, dir)
}

// TestTheEndOfATrailDoesNotWaitOutAPause closes while the sink has failed for so long that the next try is far away.
func TestTheEndOfATrailDoesNotWaitOutAPause(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &fickle{down: true}
		a, err := Open(Config{Dir: dir, Service: "test", Sinks: []Sink{s}, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.set(false)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if sent, _ := a.sinks[0].counts(); sent != 3 {
			t.Errorf("%d records sent, want the first ones of the three logs", sent)
		}
	})
}

// fickle is a sink that fails while it is down.
type fickle struct {
	mu   sync.Mutex
	down bool
}

func (f *fickle) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fickle) Send(context.Context, []Line) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errors.New("down")
	}
	return nil
}

func (f *fickle) Close() error   { return nil }
func (f *fickle) String() string { return "fickle" }

func TestSettingsOfSinksThatAreWrong(t *testing.T) {
	for _, setting := range []string{
		"", "x", "file:relative", "file://host/dir", "syslog://host", "syslog+unix:x",
		"otlp://host", "http://host:1", "syslog://:514", "%",
	} {
		if _, err := ParseSink(setting); err == nil {
			t.Errorf("%q: no error", setting)
		}
	}
}
