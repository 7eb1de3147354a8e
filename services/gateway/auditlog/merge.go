package auditlog

import (
	"context"
	"sync"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
)

// source is where the records of one host come from, in the order of their times.
type source struct {
	host string
	read func(context.Context, send) error
}

// news is what a source sent, or that it ended.
type news struct {
	source  int
	message *auditv1.ReadAuditLogsResponse // nil: it ended
	err     error                          // why it ended before all was sent
}

// state is what is known of a source.
type state struct {
	records []*auditv1.AuditRecord // that were not sent yet
	current bool                   // it has no more records now
	ended   bool
	more    chan struct{} // asks for the next message
}

// waits reports whether the source may have an earlier record than the others.
func (s *state) waits() bool { return len(s.records) == 0 && !s.current && !s.ended }

func (s *state) has() bool { return len(s.records) > 0 }

func (s *state) runs() bool { return !s.ended }

// merge sends the records of all sources by their times, and returns when all have ended. It holds one message of each
// source; a source makes the next one when that was sent. A source that fails is missing.
func merge(ctx context.Context, sources []source, to send) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	feed := make(chan news)
	states := make([]*state, len(sources))
	for i, s := range sources {
		states[i] = &state{more: make(chan struct{}, 1)}
		wg.Go(func() { pass(ctx, i, s, states[i].more, feed) })
	}
	for {
		for !anyOf(states, (*state).waits) && anyOf(states, (*state).has) {
			if err := sendEarliest(states, to); err != nil {
				return err
			}
		}
		if !anyOf(states, (*state).runs) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case n := <-feed:
			if err := take(states[n.source], sources[n.source].host, n, to); err != nil {
				return err
			}
		}
	}
}

// pass reads a source and sends what it has to feed, one message whenever more asks for it.
func pass(ctx context.Context, index int, s source, more <-chan struct{}, feed chan<- news) {
	say := func(n news) error {
		n.source = index
		select {
		case feed <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := s.read(ctx, func(m *auditv1.ReadAuditLogsResponse) error {
		if err := say(news{message: m}); err != nil {
			return err
		}
		select {
		case <-more:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	_ = say(news{err: err}) // the merge may have ended
}

// take notes what a source sent. What is missing is sent at once.
func take(s *state, host string, n news, to send) error {
	missing := n.message.GetMissing()
	if n.message == nil {
		s.ended = true
		if n.err != nil {
			missing = []*auditv1.MissingAuditLog{{Host: host, Reason: n.err.Error()}}
		}
	} else if s.records, s.current = n.message.GetRecords(), n.message.GetCurrent(); len(s.records) == 0 {
		s.more <- struct{}{}
	}
	if len(missing) == 0 {
		return nil
	}
	return to(&auditv1.ReadAuditLogsResponse{Missing: missing})
}

// sendEarliest sends records until one of the sources has to be asked for more. At least one has some.
func sendEarliest(states []*state, to send) error {
	var out []*auditv1.AuditRecord
	for size := 0; size < batchBytes; {
		var first *state
		for _, s := range states {
			if s.has() && (first == nil || s.records[0].GetTime().AsTime().Before(first.records[0].GetTime().AsTime())) {
				first = s
			}
		}
		out, size = append(out, first.records[0]), size+len(first.records[0].GetLine())
		if first.records = first.records[1:]; len(first.records) == 0 {
			first.more <- struct{}{}
			break
		}
	}
	return to(&auditv1.ReadAuditLogsResponse{Records: out})
}

func anyOf(states []*state, is func(*state) bool) bool {
	for _, s := range states {
		if is(s) {
			return true
		}
	}
	return false
}
