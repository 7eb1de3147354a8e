package command

import (
	"context"
	"time"

	"github.com/windlass-dev/windlass/services/windlass/client"
)

// liveNames returns the names of the objects of a type for completion; none if the cluster does not answer in time.
func (e *env) liveNames(ctx context.Context, word string) []string {
	const patience = 2 * time.Second // limit for pressing the tab key
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := client.FindKind(word)
	if err != nil {
		return nil
	}
	var names []string
	_ = e.withClient(func(c *client.Client) error { // completion cannot report errors
		list, _, err := c.List(ctx, k, e.scope(k, selection{}))
		for _, o := range list {
			names = append(names, o.GetMetadata().GetName())
		}
		return err
	})
	return names
}
