package proxy

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
)

const (
	// fileName is the file in the agent's directory that has all services as the last agent knew them: a
	// WatchServiceEndpointsResponse.
	fileName = "services.binpb"
	// saveEvery is the shortest time between two writes: readiness of pods changes often.
	saveEvery = time.Second
)

// watch is one stream of all services: first those that there are, then every change.
func (p *Proxy) watch(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.begun++
	number := p.begun
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.broken = number
		p.notify()
	}()
	in, err := p.agents.WatchServiceEndpoints(ctx, &schedulingv1.WatchServiceEndpointsRequest{NodeName: p.cfg.Node})
	if err != nil {
		return err
	}
	sent := map[string]bool{} // nil once the list is complete
	for {
		r, err := in.Recv()
		if err != nil {
			return err
		}
		if sent != nil {
			for _, s := range r.GetChanged() {
				sent[keyOf(s)] = true
			}
			for _, key := range r.GetRemoved() {
				delete(sent, key)
			}
		}
		if p.take(r, sent); r.GetComplete() {
			sent = nil
		}
	}
}

// take notes changes, and with the end of the first list that what was not sent does not exist.
func (p *Proxy) take(r *schedulingv1.WatchServiceEndpointsResponse, sent map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set := func(key string, s *schedulingv1.ServiceEndpoints) {
		if s == nil {
			delete(p.services, key)
		} else {
			p.services[key] = s
		}
		if p.list = nil; p.elected {
			p.dirty[key] = true
		}
	}
	for _, key := range r.GetRemoved() {
		set(key, nil)
	}
	for _, s := range r.GetChanged() {
		set(keyOf(s), s)
	}
	if r.GetComplete() && sent != nil {
		for key := range p.services {
			if !sent[key] {
				set(key, nil)
			}
		}
		p.known, p.current = true, true
	}
	p.notify()
	poke(p.wake)
	poke(p.save)
}

// keepSaved keeps the file up to date until ctx ends.
func (p *Proxy) keepSaved(ctx context.Context) error {
	said := ""
	write := func() {
		text := ""
		if err := p.write(); err != nil {
			text = err.Error()
			poke(p.save) // again after the pause
		}
		if text != said && text != "" {
			p.cfg.Log.WarnContext(ctx, "services are not saved", "error", text)
		}
		said = text
	}
	defer write()
	for {
		select {
		case <-p.save:
			write()
		case <-ctx.Done():
			return nil
		}
		if !backoff.Sleep(ctx, saveEvery) {
			return nil
		}
	}
}

// write writes the services to the file if they are not in it. It is not called concurrently.
func (p *Proxy) write() error {
	p.mu.Lock()
	known := p.known
	p.mu.Unlock()
	if !known {
		return nil
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&schedulingv1.WatchServiceEndpointsResponse{
		Changed: p.Services(), Complete: true,
	})
	sum := sha256.Sum256(raw)
	if err != nil || sum == p.saved {
		return err
	}
	if err := durable.WriteFile(filepath.Join(p.cfg.Dir, fileName), raw, 0o600); err != nil {
		return err
	}
	p.saved = sum
	return nil
}

// load reads the file. Without one, or with one that cannot be read, nothing is known until the cluster has sent it.
func (p *Proxy) load() {
	raw, err := os.ReadFile(filepath.Join(p.cfg.Dir, fileName))
	r := &schedulingv1.WatchServiceEndpointsResponse{}
	if err == nil {
		err = proto.Unmarshal(raw, r)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		p.cfg.Log.Warn("services as they were last known cannot be read", "error", err)
	case r.GetComplete(): // false for an empty file
		for _, s := range r.GetChanged() {
			p.services[keyOf(s)] = s
		}
		p.saved, p.known = sha256.Sum256(raw), true
	}
}
