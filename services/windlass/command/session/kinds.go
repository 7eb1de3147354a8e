package session

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/windlass/client"
)

// FindKind returns the kind that a word of the command line means, as client.FindKind does. The cluster is asked for
// the kinds of CustomResourceDefinitions only if Windlass itself has none that is meant.
func (e *Env) FindKind(ctx context.Context, word string) (client.Kind, error) {
	k, err := client.FindKind(word)
	if err == nil {
		return k, nil
	}
	custom, unread := e.customKinds(ctx)
	if k, ok := client.FindAmong(custom, word); ok {
		return k, nil
	}
	return client.Kind{}, cmp.Or(because(err, unread), err)
}

// KindOf returns the kind that a document names, as client.KindOf and FindKind do.
func (e *Env) KindOf(ctx context.Context, apiVersion, kind string) (client.Kind, error) {
	k, err := client.KindOf(apiVersion, kind)
	if err == nil {
		return k, nil
	}
	custom, unread := e.customKinds(ctx)
	for _, k := range custom {
		if k.APIVersion() == apiVersion && k.GetKind() == kind {
			return k, nil
		}
	}
	return client.Kind{}, cmp.Or(because(err, unread), err)
}

// patience is how long lists of kinds wait for a cluster: they are of use without it.
const patience = 2 * time.Second

// Kinds returns all kinds: those of Windlass, and those that the cluster adds if it answers in time. A nil ctx is one
// without an end.
func (e *Env) Kinds(ctx context.Context) []client.Kind {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	custom, _ := e.customKinds(ctx)
	return append(client.Kinds(), custom...)
}

// because returns an error with the reason why not all kinds are known; nil if they are.
func because(err, unread error) error {
	if unread == nil {
		return nil
	}
	return fmt.Errorf("%w; %w", err, unread)
}

// customKinds returns the kinds of CustomResourceDefinitions. They are read once.
func (e *Env) customKinds(ctx context.Context) ([]client.Kind, error) {
	if e.custom != nil {
		return *e.custom, nil
	}
	var found []client.Kind
	err := e.WithClient(func(c *client.Client) (err error) {
		found, err = c.CustomKinds(ctx)
		return err
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented: // a cluster of an earlier version has none
	default:
		return nil, err
	}
	e.custom = &found
	return found, nil
}
