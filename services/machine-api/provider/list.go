package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/status"
)

// listLimit is how long one provider may take to list its instances: users wait for it.
const listLimit = 10 * time.Second

// Names returns the names of all providers, sorted.
func (s *Set) Names() []string {
	var out []string
	for _, p := range s.plugins {
		out = append(out, p.Name)
	}
	return out
}

func (s *Set) named(name string) *Plugin {
	for _, p := range s.plugins {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// List asks the named providers, all at the same time, for their instances. Of one that does not answer it says why.
func (s *Set) List(ctx context.Context, names ...string) []plan.ProvidedInstances {
	out := make([]plan.ProvidedInstances, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() {
			out[i].Provider = name
			list, err := s.list(ctx, name)
			if err != nil {
				out[i].Unknown = status.Convert(err).Message()
				return
			}
			out[i].Instances = list
		})
	}
	group.Wait()
	return out
}

func (s *Set) list(ctx context.Context, name string) ([]*providerv1.Instance, error) {
	p := s.named(name)
	if p == nil {
		return nil, errNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	resp, err := p.client.ListInstances(ctx, &providerv1.ListInstancesRequest{})
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(resp.GetInstances(), func(i *providerv1.Instance) bool { return i == nil })
	seen := map[string]bool{}
	for _, i := range list {
		id := i.GetProviderId()
		if id == "" {
			return nil, errors.New("it lists an instance without a provider ID")
		}
		if seen[id] {
			return nil, fmt.Errorf("it lists instance %s twice", id)
		}
		seen[id] = true
	}
	return list, nil
}

// Reap has an instance deleted that no machine needs. The provider refuses if ID and token are of different instances,
// and if a later leader has called it.
func (s *Set) Reap(ctx context.Context, name string, i *providerv1.Instance, token string) error {
	p := s.named(name)
	if p == nil {
		return errNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := p.client.DeleteInstance(ctx, &providerv1.DeleteInstanceRequest{
		ProviderId: i.GetProviderId(), RequestToken: token, Fence: fence(ctx),
	})
	if err != nil {
		return err
	}
	return checkFence(ctx, answer.GetFence())
}
