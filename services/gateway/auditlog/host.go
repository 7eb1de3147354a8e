package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	"github.com/windlass-dev/windlass/kit/audit"
)

const (
	// batchBytes is what is collected before it is sent. One record more may be in a batch.
	batchBytes = 64 << 10
	// pollEvery is how often logs are read again with follow.
	pollEvery = 500 * time.Millisecond
	// aliveEvery is how often something is sent, so that the receiver knows that the host answers.
	aliveEvery = time.Second
	// lookEvery is how many records are read between two readings of the clock.
	lookEvery = 1000
)

// send takes a response. It returns when the next one may be made.
type send func(*auditv1.ReadAuditLogsResponse) error

// host is the logs of one host.
type host struct {
	name     string
	dirs     []string // in which, and in whose directories, the logs are
	programs []string // those that have a log here
}

// log is one log that is read.
type log struct {
	name   string // such as "machine-api/audit.log"
	reader *audit.Reader
	since  time.Time    // records of before are not asked for; zero: all are
	seq    uint64       // of the last record
	head   *audit.Entry // the next record to send; nil if there is none yet
}

// read sends the records of this host, and returns when all are sent, with follow when ctx ends.
func (h host) read(ctx context.Context, q *auditv1.ReadAuditLogsRequest, to send) error {
	b := batch{host: h.name, to: to, sent: time.Now()}
	logs := h.open(q, &b)
	defer func() {
		for _, l := range logs {
			_ = l.reader.Close()
		}
	}()
	for n := 0; ; n++ {
		if n%lookEvery == 0 {
			if err := errors.Join(ctx.Err(), b.alive()); err != nil {
				return err
			}
		}
		logs = slices.DeleteFunc(logs, func(l *log) bool {
			if l.fill(&b) {
				return false
			}
			_ = l.reader.Close()
			return true
		})
		next := earliest(logs)
		if next != nil {
			entry := *next.head
			next.head = nil
			if wanted(q, entry) {
				if err := b.add(next.name, entry); err != nil {
					return err
				}
			}
			continue
		}
		b.current = q.GetFollow()
		if err := b.flush(); err != nil || !q.GetFollow() {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
		n = -1
	}
}

// open opens the logs that are wanted. What cannot be opened is missing, and so is the log of a program that has none.
func (h host) open(q *auditv1.ReadAuditLogsRequest, b *batch) (logs []*log) {
	kinds := []string{audit.ChangesFile}
	if len(q.GetLogs()) > 0 {
		kinds = nil
		for _, kind := range q.GetLogs() {
			kinds = append(kinds, kind+".log")
		}
	}
	since := time.Time{}
	if q.GetSinceTime() != nil {
		since = q.GetSinceTime().AsTime()
	}
	found := map[string]bool{}
	for _, dir := range h.dirs {
		paths, err := audit.Logs(dir)
		if err != nil {
			b.lacks(err.Error())
		}
		for _, path := range paths {
			if !slices.Contains(kinds, filepath.Base(path)) {
				continue
			}
			program := filepath.Base(filepath.Dir(path))
			found[program] = true
			reader, err := audit.OpenReader(path, since)
			if err != nil {
				b.lacks(program + "/" + filepath.Base(path) + " is not read: " + err.Error())
				continue
			}
			logs = append(logs, &log{name: program + "/" + filepath.Base(path), reader: reader, since: since})
		}
	}
	for _, program := range h.programs {
		if !found[program] {
			b.lacks("the gateway finds no audit log of " + program)
		}
	}
	return logs
}

// fill reads the next record unless there is one. It returns false if the log cannot be read any further.
func (l *log) fill(b *batch) bool {
	if l.head != nil {
		return true
	}
	entry, err := l.reader.Next()
	if errors.Is(err, io.EOF) {
		return true
	}
	if err != nil {
		b.lacks(l.name + " is read no further: " + err.Error())
		return false
	}
	switch {
	case l.seq != 0 && entry.Seq != l.seq+1:
		b.lacks(fmt.Sprintf("%s: record %d follows record %d", l.name, entry.Seq, l.seq))
	case entry.Time.Before(l.since): // what is missing before it is not asked for
	case entry.Lacks() != "":
		b.lacks(l.name + ": " + entry.Lacks())
	case l.seq == 0 && entry.Seq != 1 && !l.since.IsZero():
		b.lacks(fmt.Sprintf("%s: the records before record %d, of %s, are no longer kept", l.name, entry.Seq,
			entry.Time.UTC().Format(time.RFC3339)))
	}
	l.seq = entry.Seq
	l.head = &entry
	return true
}

// earliest returns the log whose next record is the earliest; nil if none has one.
func earliest(logs []*log) (first *log) {
	for _, l := range logs {
		if l.head != nil && (first == nil || l.head.Time.Before(first.head.Time)) {
			first = l
		}
	}
	return first
}

// wanted reports whether a record is one that the request selects.
func wanted(q *auditv1.ReadAuditLogsRequest, e audit.Entry) bool {
	since, until := q.GetSinceTime(), q.GetUntilTime()
	return (since == nil || !e.Last.Before(since.AsTime())) && (until == nil || e.Time.Before(until.AsTime())) &&
		(q.GetUser() == "" || e.User == q.GetUser() || e.Several)
}

// batch collects what is sent at once.
type batch struct {
	host    string
	to      send
	records []*auditv1.AuditRecord
	missing []*auditv1.MissingAuditLog
	bytes   int
	current bool
	sent    time.Time
}

// lacks notes that records of the host are missing.
func (b *batch) lacks(reason string) {
	b.missing = append(b.missing, &auditv1.MissingAuditLog{Host: b.host, Reason: reason})
}

func (b *batch) add(name string, e audit.Entry) error {
	b.records = append(b.records,
		&auditv1.AuditRecord{Host: b.host, Log: name, Time: timestamppb.New(e.Time), Line: e.Text})
	if b.bytes += len(e.Text); b.bytes < batchBytes {
		return nil
	}
	return b.flush()
}

// alive sends something if nothing was sent for a while.
func (b *batch) alive() error {
	if time.Since(b.sent) < aliveEvery {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	m := &auditv1.ReadAuditLogsResponse{Records: b.records, Missing: b.missing, Current: b.current}
	b.records, b.missing, b.bytes, b.current = nil, nil, 0, false
	err := b.to(m)
	b.sent = time.Now()
	return err
}
