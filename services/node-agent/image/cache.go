package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

// Files of a cache:
//
//	DIR/sha256-HEX/root/        the files of the image with that digest, unless a Keeper has them
//	DIR/sha256-HEX/image.json   what is known of it
//	DIR/.new-RANDOM/            an image that is being unpacked
//	DIR/.old-RANDOM/            one that is being removed
//
// An image gets its name by one rename, when everything of it is there: a name means a complete image, unless the host
// crashed since, which image.json shows.
const (
	rootDir     = "root"
	imageFile   = "image.json"
	newPart     = ".new-"
	oldPart     = ".old-"
	digestPart  = "sha256-"
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
	digestShape = "sha256:"
)

// Cached is an image that is unpacked, or that a Keeper has.
type Cached struct {
	Digest string   `json:"digest"`
	Names  []string `json:"names"` // references that led to it, the last one first
	// Signed has the hashes of the sets of key rings by which it was found to be signed, the last one first.
	Signed []string `json:"signed,omitempty"`
	Config Config   `json:"config"`
	Bytes  int64    `json:"bytes"` // of its files, or what its keeper says
	// Detected is when it was unpacked, Used when a container last got it.
	Detected time.Time `json:"detected"`
	Used     time.Time `json:"used"`
	// Boot is when the host was in when it was unpacked. Until it is Synced, it may be incomplete in another.
	Boot   string `json:"boot"`
	Synced bool   `json:"synced"`

	ID   string `json:"id,omitempty"` // what its Keeper calls it; empty if it is unpacked here
	Root string `json:"-"`            // directory of its files, which are never changed; empty with a Keeper
}

// cache holds images that are unpacked, each once.
type cache struct {
	dir    string
	disk   func() string // returns a directory of the disk that the files of images are on
	boot   string        // of the host
	keeper Keeper        // nil: images are unpacked into dir
	log    *slog.Logger

	// removal is held while the keeper removes an image, and while one that it has got is entered: it must not be removed
	// under another digest, or from an earlier time.
	removal chan struct{}

	mu      sync.Mutex
	images  map[string]*Cached // by digest; an image is replaced, never changed
	leases  map[string]int     // by digest: jobs that use an image now
	flights map[string]*flight
	changed chan struct{} // closed when images change
	work    sync.WaitGroup
	rest    []string // directories that are no images, to be removed
	// doubtful are the images that the keeper may have incomplete, by digest, with their IDs; empty: not known.
	doubtful map[string]string
}

// flight is one image that is being unpacked, for all that wait for it.
type flight struct {
	waiting  int
	cancel   context.CancelCauseFunc
	done     chan struct{}
	err      error
	progress *progress
}

// errNobodyWaits ends a flight whose last pod is gone.
var errNobodyWaits = errors.New("no pod waits for the image any more")

// openCache returns the images that are complete, and removes what else is there.
func openCache(dir string, disk func() string, keeper Keeper, log *slog.Logger) (*cache, error) {
	c := &cache{
		dir: dir, disk: disk, keeper: keeper, log: log, removal: make(chan struct{}, 1), images: map[string]*Cached{},
		leases: map[string]int{}, flights: map[string]*flight{}, changed: make(chan struct{}),
		doubtful: map[string]string{},
	}
	if raw, err := os.ReadFile(bootIDFile); err == nil {
		c.boot = strings.TrimSpace(string(raw))
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPart) || strings.HasPrefix(e.Name(), oldPart) {
			c.rest = append(c.rest, e.Name())
		}
		if !strings.HasPrefix(e.Name(), digestPart) {
			continue
		}
		i, err := c.load(e.Name())
		if err != nil {
			log.Warn("unpacked image is discarded", "image", e.Name(), "error", err)
			if keeper != nil {
				c.doubt(e.Name(), i)
			}
			old := oldPart + rand.Text()
			if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, old)); err != nil {
				return nil, err
			}
			c.rest = append(c.rest, old)
			continue
		}
		c.images[i.Digest] = i
	}
	return c, nil
}

// load reads what is known of an image. With an error the image is none, and nil if nothing is known.
func (c *cache) load(name string) (*Cached, error) {
	raw, err := os.ReadFile(filepath.Join(c.dir, name, imageFile))
	if err != nil {
		return nil, err
	}
	i := &Cached{}
	if err := json.Unmarshal(raw, i); err != nil {
		return nil, err
	}
	switch err := c.locate(i, name); {
	case err != nil:
		return i, err
	case nameOf(i.Digest) != name:
		return i, fmt.Errorf("it is %q", i.Digest)
	case !i.Synced && i.Boot != c.boot:
		return i, errors.New("the host was restarted before it was on the disk")
	}
	return i, nil
}

// locate finds the files of an image, which an agent with another runtime may have got.
func (c *cache) locate(i *Cached, name string) error {
	if c.keeper != nil {
		if i.ID == "" {
			return errors.New("the runtime does not have it")
		}
		return nil
	}
	i.Root = filepath.Join(c.dir, name, rootDir)
	_, err := os.Stat(i.Root)
	return err
}

func nameOf(digest string) string { return digestPart + strings.TrimPrefix(digest, digestShape) }

func digestOf(name string) string { return digestShape + strings.TrimPrefix(name, digestPart) }

// sweep removes what was no image when the cache was opened: what an earlier agent had not completed, or not removed.
func (c *cache) sweep(ctx context.Context) {
	for _, name := range c.rest {
		if ctx.Err() != nil {
			return
		}
		if err := process.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			c.log.WarnContext(ctx, "rest of an image not removed", "file", name, "error", err)
		}
	}
	c.sweepKeeper(ctx)
}

// find returns the image with a digest, or nil.
func (c *cache) find(digest string) *Cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.images[digest]
}

// named returns the image that a reference led to, or nil. It is leased.
func (c *cache) named(name string) *Cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.images {
		if slices.Contains(i.Names, name) {
			c.leases[i.Digest]++
			return i
		}
	}
	return nil
}

// release ends a lease.
func (c *cache) release(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases[digest]--; c.leases[digest] <= 0 {
		delete(c.leases, digest)
	}
}

// ensure returns an image that is unpacked, now if it was not: by unpack, which is called once for all that wait. names
// are those that led to it. It is leased.
func (c *cache) ensure(ctx context.Context, img *Image, names []string, p *Progress,
	slot func(context.Context) (func(), error),
) (*Cached, error) {
	flown := false
	defer func() {
		if !flown && img.close != nil { // else the flight needs it, though this pod may be gone
			img.close(nil)
		}
	}()
	for {
		c.mu.Lock()
		if i := c.images[img.Digest]; i != nil {
			c.leases[i.Digest]++
			c.mu.Unlock()
			has, err := c.has(ctx, i)
			if has {
				return c.use(i, names), nil
			}
			c.release(i.Digest)
			if err != nil {
				return nil, err
			}
			continue
		}
		f := c.flights[img.Digest]
		if f == nil {
			if flown && img.close != nil { // the registry is not asked any more
				c.mu.Unlock()
				return nil, fmt.Errorf("%w: it was removed at once", errTransfer)
			}
			flown = true
			f = c.fly(img, names, slot)
		}
		f.waiting++
		p.of.Store(f.progress)
		c.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if f.waiting--; f.waiting == 0 {
			f.cancel(errNobodyWaits)
		}
		c.mu.Unlock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if f.err != nil && !errors.Is(f.err, errNobodyWaits) { // else it ended as this one came
			return nil, f.err
		}
	}
}

// fly begins to unpack an image. The lock is held.
func (c *cache) fly(img *Image, names []string, slot func(context.Context) (func(), error)) *flight {
	ctx, cancel := context.WithCancelCause(context.Background())
	f := &flight{cancel: cancel, done: make(chan struct{}), progress: img.received}
	if c.keeper != nil {
		f.progress = &progress{total: img.bytes} // what the keeper gets, also of an image on the disk
	}
	c.flights[img.Digest] = f
	c.work.Go(func() {
		err := c.unpack(ctx, img, names, slot, f.progress)
		c.mu.Lock()
		defer c.mu.Unlock()
		f.err = err
		delete(c.flights, img.Digest)
		close(f.done)
		cancel(nil)
	})
	return f
}

// signal says that the images changed. The lock is held.
func (c *cache) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// unpack gets an image and enters it.
func (c *cache) unpack(ctx context.Context, img *Image, names []string,
	slot func(context.Context) (func(), error), p *progress,
) (err error) {
	free, err := slot(ctx)
	if err != nil {
		return err
	}
	defer free()
	if img.close != nil {
		defer context.AfterFunc(ctx, func() { img.close(context.Cause(ctx)) })()
		defer img.close(nil)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.dir, newPart)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, process.RemoveAll(dir))
		}
	}()
	to := filepath.Join(c.dir, nameOf(img.Digest))
	i := &Cached{Digest: img.Digest, Names: names, Config: img.Config, Boot: c.boot}
	if c.keeper == nil {
		i.Root = filepath.Join(to, rootDir)
		if err := os.Mkdir(filepath.Join(dir, rootDir), 0o700); err != nil {
			return err
		}
		i.Bytes, err = img.unpack(ctx, filepath.Join(dir, rootDir))
	} else {
		var entered func()
		if entered, err = c.handOver(ctx, img, i, p); err == nil {
			defer entered()
		}
	}
	if err != nil {
		return err
	}
	i.Detected = time.Now().UTC()
	i.Used = i.Detected
	if err := write(dir, i); err != nil {
		return err
	}
	if err := process.RemoveAll(to); err != nil { // one that could not be read
		return err
	}
	if err := os.Rename(dir, to); err != nil {
		return err
	}
	c.mu.Lock()
	c.images[i.Digest] = i
	c.signal()
	c.mu.Unlock()
	c.work.Go(func() { c.sync(img.Digest) })
	return nil
}

// sync has the image survive a crash of the host.
func (c *cache) sync(digest string) {
	f, err := os.Open(c.disk())
	if err == nil {
		err = errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
	}
	if err == nil {
		err = c.change(digest, func(i *Cached) { i.Synced = true })
	}
	if err != nil {
		c.log.Warn("image may not survive a crash of the host", "image", digest, "error", err)
	}
}

// change changes what is known of an image.
func (c *cache) change(digest string, by func(*Cached)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.images[digest]
	if old == nil {
		return nil
	}
	next := *old
	by(&next)
	c.images[digest] = &next
	return write(filepath.Join(c.dir, nameOf(digest)), &next)
}

func write(dir string, i *Cached) error {
	raw, err := json.Marshal(i)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, imageFile)
	if err := os.WriteFile(file+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// maxNames is how many names of an image are kept. Source: kubelet, MaxNamesPerImageInNodeStatus.
const maxNames = 5

// use notes that an image was used, and which names led to it: they lead to no other one any more.
func (c *cache) use(i *Cached, names []string) *Cached {
	c.mu.Lock()
	var others []string
	for digest, other := range c.images {
		if digest != i.Digest && slices.ContainsFunc(names, func(n string) bool { return slices.Contains(other.Names, n) }) {
			others = append(others, digest)
		}
	}
	c.mu.Unlock()
	isOne := func(n string) bool { return slices.Contains(names, n) }
	for _, digest := range others {
		c.note(digest, func(o *Cached) { o.Names = slices.DeleteFunc(slices.Clone(o.Names), isOne) })
	}
	c.note(i.Digest, func(o *Cached) {
		o.Used = time.Now().UTC()
		o.Names = append(slices.Clone(names), slices.DeleteFunc(slices.Clone(o.Names), isOne)...)
		o.Names = o.Names[:min(len(o.Names), maxNames)]
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.images[i.Digest]
	if now == nil { // its keeper has lost it since
		return i
	}
	if !slices.Equal(now.Names, i.Names) || len(others) > 0 {
		c.signal()
	}
	return now
}

// note changes what is known of an image; if that is not written, an earlier state of it is known after a restart.
func (c *cache) note(digest string, by func(*Cached)) {
	if err := c.change(digest, by); err != nil {
		c.log.Warn("use of an image not noted", "image", digest, "error", err)
	}
}

// list returns the images, and a channel that is closed when they change.
func (c *cache) list() (images []*Cached, leased map[string]bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	leased = map[string]bool{}
	for digest := range c.leases {
		leased[digest] = true
	}
	for _, i := range c.images {
		images = append(images, i)
	}
	slices.SortFunc(images, func(a, b *Cached) int { return strings.Compare(a.Digest, b.Digest) })
	return images, leased, c.changed
}

// drop removes an image that no job uses, and that was not used since a time.
func (c *cache) drop(digest string, used time.Time) error {
	if c.keeper != nil {
		return c.dropKept(digest, used)
	}
	c.mu.Lock()
	if !c.unused(digest, used) {
		c.mu.Unlock()
		return nil
	}
	old, err := c.discard(digest)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return process.RemoveAll(old)
}

// unused reports whether there is an image that no job uses, and that was not used since a time. The lock is held.
func (c *cache) unused(digest string, used time.Time) bool {
	i := c.images[digest]
	return i != nil && c.leases[digest] == 0 && !i.Used.After(used)
}

// discard has an image be none any more, and returns the directory that is left of it. The lock is held.
func (c *cache) discard(digest string) (string, error) {
	old := filepath.Join(c.dir, oldPart+rand.Text())
	if err := os.Rename(filepath.Join(c.dir, nameOf(digest)), old); err != nil {
		return "", err
	}
	delete(c.images, digest)
	c.signal()
	return old, nil
}

// end cancels what is under way and waits for it.
func (c *cache) end() {
	c.mu.Lock()
	for _, f := range c.flights {
		f.cancel(context.Canceled)
	}
	c.mu.Unlock()
	c.work.Wait()
}
