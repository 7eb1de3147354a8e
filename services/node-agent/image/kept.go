package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
)

const (
	// removePatience is how long a keeper may take to remove an image.
	removePatience = 2 * time.Minute
	// enterPatience is how long an image that the keeper has got may take to be entered when no pod waits for it any
	// more. If it is not entered, it is not removed when it is unused.
	enterPatience = 10 * time.Second
)

// handOver has the keeper get an image, and notes in i what it says of it. Until entered is called, nothing is removed
// from the keeper.
func (c *cache) handOver(ctx context.Context, img *Image, i *Cached, p *progress) (entered func(), err error) {
	src, err := newSource(img, i.Names[min(1, len(i.Names)-1)], p) // by the name in full, which comes second
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrBroken) && !errors.Is(err, errTransfer) {
			err = fmt.Errorf("%w: %w", errTransfer, err)
		}
	}()
	if err := c.settle(ctx, img.Digest, src.Config); err != nil {
		return nil, err
	}
	if i.ID, i.Bytes, err = c.keeper.Keep(ctx, src); err != nil {
		return nil, err
	}
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(enterPatience, cancel) })()
	free, err := c.holdRemoval(longer)
	if err != nil {
		return nil, err
	}
	has, err := c.keeper.Has(longer, i.ID)
	if err == nil && !has { // a removal that was under way has taken it
		i.ID, i.Bytes, err = c.keeper.Keep(ctx, src)
	}
	if err != nil {
		free()
		return nil, err
	}
	return free, nil
}

// holdRemoval waits until nothing is removed from the keeper, and lets nothing be until free is called.
func (c *cache) holdRemoval(ctx context.Context) (free func(), err error) {
	select {
	case c.removal <- struct{}{}:
		return func() { <-c.removal }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another image is being removed: %w", context.Cause(ctx))
	}
}

// has reports whether an image is still there. One that its keeper has lost is forgotten.
func (c *cache) has(ctx context.Context, i *Cached) (bool, error) {
	if c.keeper == nil {
		return true, nil
	}
	has, err := c.keeper.Has(ctx, i.ID)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil:
		return false, fmt.Errorf("%w: %w", errTransfer, err)
	case has:
		return true, nil
	}
	c.log.WarnContext(ctx, "image is not in the runtime any more", "image", i.Digest)
	return false, c.forget(i)
}

// forget discards what is known of an image that its keeper has lost, unless it was got again since.
func (c *cache) forget(i *Cached) error {
	c.mu.Lock()
	now := c.images[i.Digest]
	if now == nil || !now.Detected.Equal(i.Detected) {
		c.mu.Unlock()
		return nil
	}
	old, err := c.discard(i.Digest)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return process.RemoveAll(old)
}

// dropKept is drop for an image of the keeper. If it does not remove the image, it stays known.
func (c *cache) dropKept(digest string, used time.Time) error {
	ctx, cancel := context.WithTimeout(context.Background(), removePatience)
	defer cancel()
	free, err := c.holdRemoval(ctx)
	if err != nil {
		return err
	}
	defer free()
	c.mu.Lock()
	if !c.unused(digest, used) {
		c.mu.Unlock()
		return nil
	}
	i := c.images[digest]
	delete(c.images, digest) // no job gets it from now on
	c.mu.Unlock()
	err = c.disown(ctx, i.ID)
	c.mu.Lock()
	c.images[digest] = i
	if err != nil {
		c.mu.Unlock()
		return err
	}
	old, err := c.discard(digest)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return process.RemoveAll(old)
}

// disown has the keeper remove an image that is not in the cache any more, unless it is there with another digest: two
// manifests may have the same configuration, and so the same layers. Removal is held.
func (c *cache) disown(ctx context.Context, id string) error {
	c.mu.Lock()
	for _, other := range c.images {
		if other.ID == id {
			c.mu.Unlock()
			return nil
		}
	}
	c.mu.Unlock()
	return c.keeper.Remove(ctx, id)
}

// doubt notes that the keeper may have an image incomplete, unless the image is one that an agent without a keeper had
// unpacked. i is nil if nothing is known of the image.
func (c *cache) doubt(name string, i *Cached) {
	switch {
	case i == nil:
		c.doubtful[digestOf(name)] = ""
	case i.ID != "":
		c.doubtful[digestOf(name)] = i.ID
	}
}

// doubted returns the ID of an image that the keeper may have incomplete; empty if it is not known.
func (c *cache) doubted(digest string) (id string, doubted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, doubted = c.doubtful[digest]
	return id, doubted
}

// settle has the keeper remove an image that it may have incomplete, so that it is got again. guess is the ID if it is
// not known.
func (c *cache) settle(ctx context.Context, digest, guess string) error {
	if _, doubted := c.doubted(digest); !doubted {
		return nil
	}
	free, err := c.holdRemoval(ctx)
	if err != nil {
		return err
	}
	defer free()
	id, doubted := c.doubted(digest)
	if !doubted {
		return nil
	}
	if id == "" {
		id = guess
	}
	if err := c.disown(ctx, id); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.doubtful, digest)
	c.mu.Unlock()
	return nil
}

// sweepEvery is how often a keeper is asked that does not answer: it may start after the agent.
const sweepEvery = 10 * time.Second

// sweepKeeper removes from the keeper the images that were discarded when the cache was opened, until ctx ends.
func (c *cache) sweepKeeper(ctx context.Context) {
	for tries := 0; ; tries++ {
		c.mu.Lock()
		ids := maps.Clone(c.doubtful)
		c.mu.Unlock()
		var failed error
		for digest, id := range ids {
			if id != "" {
				failed = errors.Join(failed, c.settle(ctx, digest, id))
			}
		}
		if failed == nil || ctx.Err() != nil {
			return
		}
		if tries == 0 {
			c.log.WarnContext(ctx, "images that may be incomplete are not removed yet", "error", failed)
		}
		select {
		case <-time.After(sweepEvery):
		case <-ctx.Done():
		}
	}
}
