// Package events merges the events of all programs into one service: each program serves those that it emits, and the
// gateway alone shows them together. A program that cannot be reached does not keep the others' events back.
package events

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// patience is how long one program may take to list; it is longer than the wait for one that restarts (2 s).
	patience = 5 * time.Second
	// pageSize bounds one answer of a program.
	pageSize = 500
)

// Merger serves the events of all programs. It is a gRPC server; Client makes a client of it for calls inside the
// process.
type Merger struct {
	eventv1.UnimplementedEventServiceServer
	sources []source
}

type source struct {
	program string
	client  eventv1.EventServiceClient
}

// New makes a merger of the programs; to returns the connection to one of them.
func New(programs []string, to func(program string) grpc.ClientConnInterface) *Merger {
	m := &Merger{}
	for _, p := range programs {
		m.sources = append(m.sources, source{program: p, client: eventv1.NewEventServiceClient(to(p))})
	}
	return m
}

// absent reports whether a program's error only means that its events are not to be had now, or that it has none.
func absent(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unimplemented:
		return true
	}
	return false
}

// answer is what one program said.
type answer[T any] struct {
	program string
	value   T
	err     error
}

// ask asks all programs at the same time and waits for all of them, each no longer than patience.
func ask[T any](ctx context.Context, sources []source, f func(context.Context, eventv1.EventServiceClient) (T,
	error),
) []answer[T] {
	answers := make([]answer[T], len(sources))
	var wg sync.WaitGroup
	for i, s := range sources {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			v, err := f(ctx, s.client)
			answers[i] = answer[T]{program: s.program, value: v, err: err}
		})
	}
	wg.Wait()
	return answers
}

// GetEvent returns the event from the program that has it.
func (m *Merger) GetEvent(ctx context.Context, r *eventv1.GetEventRequest) (*eventv1.Event, error) {
	answers := ask(ctx, m.sources, func(ctx context.Context, c eventv1.EventServiceClient) (*eventv1.Event, error) {
		return c.GetEvent(ctx, r)
	})
	notFound := error(nil)
	var others error
	for _, a := range answers {
		switch {
		case a.err == nil:
			return a.value, nil
		case status.Code(a.err) == codes.NotFound:
			notFound = a.err
		case status.Code(a.err) != codes.Unimplemented:
			others = cmp.Or(others, a.err)
		}
	}
	// If a service did not answer, "not found" would be a guess.
	if err := cmp.Or(others, notFound); err != nil {
		return nil, err
	}
	return nil, rpcerr.NotFound("Event", r.GetName())
}

// ListEvents returns the events of all programs, the latest last. Programs that did not answer are named in the header
// rpcerr.WarningKey. The revision of the list is the lowest of the programs': a watch that begins there misses nothing.
func (m *Merger) ListEvents(ctx context.Context, r *eventv1.ListEventsRequest) (*eventv1.EventList, error) {
	after, err := parseToken(r.GetContinue())
	if err != nil {
		return nil, rpcerr.Invalid(object.Fault{Path: "continue", Description: "is not a token of this list"})
	}
	answers := ask(ctx, m.sources, func(ctx context.Context, c eventv1.EventServiceClient) (*eventv1.EventList, error) {
		return listAll(ctx, c, r)
	})
	list := &eventv1.EventList{ApiVersion: "v1", Kind: "EventList", Metadata: &metav1.ListMeta{}}
	lowest := int64(-1)
	reached := 0
	var away error
	for _, a := range answers {
		switch {
		case a.err == nil:
			reached++
			list.Items = append(list.Items, a.value.GetItems()...)
			lowest = lower(lowest, revision(a.value.GetMetadata().GetResourceVersion()))
		case status.Code(a.err) == codes.Unimplemented:
		case absent(a.err) && ctx.Err() == nil:
			away = a.err
			rpcerr.Warn(ctx, "the events of "+a.program+" are missing: it cannot be reached")
		default:
			return nil, a.err
		}
	}
	if reached == 0 && away != nil {
		return nil, away
	}
	if lowest >= 0 {
		list.Metadata.ResourceVersion = strconv.FormatInt(lowest, 10)
	}
	slices.SortFunc(list.Items, func(a, b *eventv1.Event) int { return place(a).compare(place(b)) })
	cut(list, after, int(r.GetLimit()))
	return list, nil
}

func listAll(ctx context.Context, c eventv1.EventServiceClient, r *eventv1.ListEventsRequest) (*eventv1.EventList,
	error,
) {
	page := &eventv1.ListEventsRequest{
		Namespace:       r.GetNamespace(),
		LabelSelector:   r.GetLabelSelector(),
		FieldSelector:   r.GetFieldSelector(),
		ResourceVersion: r.GetResourceVersion(),
		ReadMask:        r.GetReadMask(),
		Limit:           pageSize,
	}
	all := &eventv1.EventList{}
	for {
		got, err := c.ListEvents(ctx, page)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, got.GetItems()...)
		if all.Metadata == nil {
			all.Metadata = got.GetMetadata()
		}
		if page.Continue = got.GetMetadata().GetContinue(); page.Continue == "" {
			return all, nil
		}
		page.ResourceVersion = "" // the token knows it
	}
}

// position orders events: by their last time, then by where they are.
type position struct {
	Time            int64
	Namespace, Name string
}

func place(e *eventv1.Event) position {
	at := e.GetLastTimestamp()
	if at == nil {
		at = e.GetMetadata().GetCreationTimestamp()
	}
	return position{Time: at.GetSeconds(), Namespace: e.GetMetadata().GetNamespace(), Name: e.GetMetadata().GetName()}
}

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.Time, o.Time), cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name))
}

// cut keeps the page after a position; a limit of 0 keeps all.
func cut(list *eventv1.EventList, after *position, limit int) {
	if after != nil {
		from := slices.IndexFunc(list.Items, func(e *eventv1.Event) bool { return place(e).compare(*after) > 0 })
		if from < 0 {
			from = len(list.Items)
		}
		list.Items = list.Items[from:]
	}
	if limit <= 0 || len(list.Items) <= limit {
		return
	}
	rest := int32(len(list.Items) - limit)
	list.Items = list.Items[:limit]
	list.Metadata.RemainingItemCount = &rest
	list.Metadata.Continue = token(place(list.Items[limit-1]))
}

func token(p position) string {
	data, err := json.Marshal(p)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func parseToken(s string) (*position, error) {
	if s == "" {
		return nil, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	p := &position{}
	return p, json.Unmarshal(data, p)
}

// revision reads a resource version; -1 if it is unknown.
func revision(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// lower is the lower of two revisions that are known.
func lower(a, b int64) int64 {
	if a < 0 || (b >= 0 && b < a) {
		return b
	}
	return a
}

var errAllAway = errors.New("none of the programs can be reached")
