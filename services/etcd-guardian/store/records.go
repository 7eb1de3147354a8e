// Package store keeps what the guardian must not forget and what is no resource: in etcd the disruption permit and the
// published addresses, on disk which cluster this is and whether its bootstrap member has left.
package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/store"
)

// The records have a prefix of their own, so that one read gets them all.
const (
	prefix       = "quorum/"
	permitKey    = prefix + "permit"
	endpointsKey = prefix + "endpoints"
	membersKey   = prefix + "members/" // and a member's id in hexadecimal
)

// Permit is the disruption permit as it is stored.
type Permit struct {
	Message  *etcdv1.DisruptionPermit
	Released bool  // the work is done
	Revision int64 // at which it was stored
}

// State is everything in etcd.
type State struct {
	Permit    *Permit // nil: free
	Endpoints []string
	Machines  map[uint64]string // uid of the machine that a member is on, by the member's id, which etcd never gives again
}

// Records reads and writes the state in etcd.
type Records struct{ st *store.Store }

// NewRecords returns the records in the guardian's own store.
func NewRecords(st *store.Store) *Records { return &Records{st: st} }

type permitRecord struct {
	Permit   json.RawMessage `json:"permit"`
	Released bool            `json:"released,omitempty"`
}

type endpointsRecord struct {
	URLs []string  `json:"urls"`
	Time time.Time `json:"time"` // for people
}

type memberRecord struct {
	MachineUID string `json:"machineUID"`
}

// Read returns the state as it is now.
func (r *Records) Read(ctx context.Context) (State, error) {
	page, err := r.st.List(ctx, prefix, store.ListOptions{})
	if err != nil {
		return State{}, err
	}
	s := State{Machines: map[uint64]string{}}
	for _, record := range page.Records {
		if err := s.take(record); err != nil {
			return State{}, fmt.Errorf("record %q: %w", record.Key, err)
		}
	}
	return s, nil
}

func (s *State) take(r store.Record) error {
	if member, ok := strings.CutPrefix(r.Key, membersKey); ok {
		id, err := strconv.ParseUint(member, 16, 64)
		if err != nil {
			return err
		}
		var m memberRecord
		err = json.Unmarshal(r.Value, &m)
		s.Machines[id] = m.MachineUID
		return err
	}
	switch r.Key {
	case permitKey:
		var p permitRecord
		if err := json.Unmarshal(r.Value, &p); err != nil {
			return err
		}
		s.Permit = &Permit{Message: &etcdv1.DisruptionPermit{}, Released: p.Released, Revision: r.Revision}
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(p.Permit, s.Permit.Message)
	case endpointsKey:
		var e endpointsRecord
		err := json.Unmarshal(r.Value, &e)
		s.Endpoints = e.URLs
		return err
	}
	return nil
}

// Acquire stores the permit if it is free; else the error wraps store.ErrExists.
func (r *Records) Acquire(ctx context.Context, p *etcdv1.DisruptionPermit) error {
	return r.putPermit(ctx, Permit{Message: p}, 0)
}

// Release notes that the work is done, if the permit is still the one that was read.
func (r *Records) Release(ctx context.Context, p Permit) error {
	p.Released = true
	return r.putPermit(ctx, p, p.Revision)
}

func (r *Records) putPermit(ctx context.Context, p Permit, revision int64) error {
	message, err := protojson.Marshal(p.Message)
	if err != nil {
		return err
	}
	value, err := json.Marshal(permitRecord{Permit: message, Released: p.Released})
	if err != nil {
		return err
	}
	_, err = r.st.Commit(ctx, store.Put(permitKey, value, revision))
	return err
}

// Fenced returns an error unless the leadership that ctx carries still holds.
func (r *Records) Fenced(ctx context.Context) error { return r.st.CheckFence(ctx) }

// Free ends the permit, if it is still the one that was read.
func (r *Records) Free(ctx context.Context, p Permit) error {
	_, err := r.st.Commit(ctx, store.Delete(permitKey, p.Revision))
	return err
}

// Bind writes down which machine a member is on. It stays so until the member has left; else the error wraps
// store.ErrExists.
func (r *Records) Bind(ctx context.Context, member uint64, machineUID string) error {
	value, err := json.Marshal(memberRecord{MachineUID: machineUID})
	if err != nil {
		return err
	}
	_, err = r.st.Commit(ctx, store.Put(memberKey(member), value, 0))
	return err
}

// Unbind forgets the machine of a member that has left.
func (r *Records) Unbind(ctx context.Context, member uint64) error {
	_, err := r.st.Commit(ctx, store.Delete(memberKey(member), store.Whatever))
	return err
}

func memberKey(id uint64) string { return membersKey + strconv.FormatUint(id, 16) }

// Publish stores the addresses for clients.
func (r *Records) Publish(ctx context.Context, urls []string, now time.Time) error {
	value, err := json.Marshal(endpointsRecord{URLs: urls, Time: now.UTC()})
	if err != nil {
		return err
	}
	_, err = r.st.Commit(ctx, store.Put(endpointsKey, value, store.Whatever))
	return err
}
