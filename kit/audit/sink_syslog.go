package audit

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"
)

// Priorities of RFC 5424: facility 13 (log audit), severity 5 (notice) and 4 (warning).
const (
	priorityNotice  = 13*8 + 5
	priorityWarning = 13*8 + 4
)

// syslogSink sends RFC 5424 messages, over TCP with the octet counts of RFC 6587. Only a connection that breaks shows
// that messages were lost; UDP shows nothing.
type syslogSink struct {
	network, address string
	host             string
	conn             net.Conn
}

func networkSyslog(network string, u *url.URL) (Sink, error) {
	if u.Hostname() == "" || u.Port() == "" || u.Path != "" {
		return nil, fmt.Errorf("audit sink %q: must be %s://HOST:PORT", u, u.Scheme)
	}
	return newSyslog(network, u.Host), nil
}

func newSyslog(network, address string) *syslogSink {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "-"
	}
	return &syslogSink{network: network, address: address, host: host}
}

// String returns where messages go.
func (s *syslogSink) String() string { return "syslog:" + s.network + ":" + s.address }

// Close closes the connection.
func (s *syslogSink) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}

// Send sends one message a line.
func (s *syslogSink) Send(ctx context.Context, lines []Line) error {
	if s.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, s.network, s.address)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	deadline, _ := ctx.Deadline()
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return s.broken(err)
	}
	for _, l := range lines {
		message := s.message(l, time.Now())
		if s.network == "tcp" {
			message = append(fmt.Appendf(nil, "%d ", len(message)), message...)
		}
		if _, err := s.conn.Write(message); err != nil {
			return s.broken(err)
		}
	}
	return nil
}

func (s *syslogSink) broken(err error) error {
	_ = s.conn.Close()
	s.conn = nil
	return err
}

func (s *syslogSink) message(l Line, now time.Time) []byte {
	priority := priorityNotice
	if l.Log == RefusalsFile {
		priority = priorityWarning
	}
	head := fmt.Sprintf("<%d>1 %s %s windlass-%s %d %s - ", priority, now.UTC().Format(time.RFC3339Nano), s.host,
		l.Service, os.Getpid(), l.Log)
	return append([]byte(head), bytes.TrimSuffix(l.Text, []byte("\n"))...)
}
