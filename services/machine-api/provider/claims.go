package provider

import (
	"context"
	"errors"
	"sync"

	"github.com/windlass-dev/windlass/kit/store"
)

// Claim notes that a provider understands a kind of provider spec, unless another one is noted for it, and returns the
// one that is: the provider in force for the kind.
type Claim func(ctx context.Context, kind, provider string) (inForce string, err error)

// claimPrefix begins the records of claims: the kind follows, the value is the name of the provider.
const claimPrefix = "provider-kinds/"

// claimTries is how often a claim is made that others change at the same time.
const claimTries = 8

// Claims returns claims that are kept in etcd, so that the provider that was in force for a kind still is after a
// restart, whichever provider answers first. chosen is the provider to be in force by kind, as the administrator wants
// it: it replaces the one that is noted, as soon as it answers.
func Claims(st *store.Store, chosen map[string]string) Claim {
	return func(ctx context.Context, kind, provider string) (string, error) {
		key, want := claimPrefix+kind, chosen[kind]
		if want != "" && want != provider {
			return want, nil
		}
		var err error
		for range claimTries {
			var r store.Record
			r, err = st.Get(ctx, key)
			switch {
			case errors.Is(err, store.ErrNotFound):
				_, err = st.Commit(ctx, store.Put(key, []byte(provider), 0))
			case err != nil:
				return "", err
			case want == "" || string(r.Value) == want:
				return string(r.Value), nil
			default:
				_, err = st.Commit(ctx, store.Put(key, []byte(provider), r.Revision))
			}
			if err == nil {
				return provider, nil
			}
			if !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
				return "", err
			}
		}
		return "", err
	}
}

// firstToCome returns claims that are kept in memory.
func firstToCome() Claim {
	var mu sync.Mutex
	noted := map[string]string{}
	return func(_ context.Context, kind, provider string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if noted[kind] == "" {
			noted[kind] = provider
		}
		return noted[kind], nil
	}
}
