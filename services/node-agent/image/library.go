package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/registry"
)

var (
	// ErrNeverPull means that an image is not there, and must not be pulled.
	ErrNeverPull = errors.New("image is not present with a pull policy of Never")
	// ErrInvalidName means that a reference is none.
	ErrInvalidName = errors.New("invalid reference")
)

// Values of imagePullPolicy.
const (
	always       = "Always"
	ifNotPresent = "IfNotPresent"
	never        = "Never"
)

// maxWork is how many images are unpacked at a time from one registry, and from the disk. A registry that is slow does
// not delay those of others.
const maxWork = 2

// LibraryConfig says where images come from and where they are kept.
type LibraryConfig struct {
	Dir     string   // of unpacked images, the agent's own; with a Keeper, of what is known of them
	Layouts []string // directories with OCI layouts
	// Settings are files that say how registries are reached, read before each pull: the first that exists.
	Settings []string
	// Patience is how long a registry may take for the next 64 KiB; 0 means a minute.
	Patience time.Duration
	// Keeper keeps the files of images; nil: they are unpacked into Dir.
	Keeper Keeper
	// Disk returns a directory of the disk that the Keeper has images on, empty as long as that is not known; nil, or
	// empty: Dir.
	Disk func() string
	Log  *slog.Logger
}

// disk returns a directory of the disk that the images are on.
func (c LibraryConfig) disk() string {
	if c.Disk != nil {
		if dir := c.Disk(); dir != "" {
			return dir
		}
	}
	return c.Dir
}

// Library gets images and keeps them unpacked, or has a Keeper keep them. Make it with NewLibrary; its methods may be
// called concurrently.
type Library struct {
	cfg      LibraryConfig
	layouts  *Store
	cache    *cache
	builtins builtins

	mu    sync.Mutex
	slots map[string]chan struct{} // by host
}

// NewLibrary returns a library with the images that an earlier one had unpacked.
func NewLibrary(cfg LibraryConfig) (*Library, error) {
	c, err := openCache(cfg.Dir, cfg.disk, cfg.Keeper, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("unpacked images: %w", err)
	}
	return &Library{cfg: cfg, layouts: NewStore(cfg.Layouts...), cache: c, slots: map[string]chan struct{}{}}, nil
}

// Run removes the rests of an earlier agent, and ends what is under way when ctx ends. Get must not be called later.
func (l *Library) Run(ctx context.Context) {
	l.cache.sweep(ctx)
	<-ctx.Done()
	l.cache.end()
}

// Request asks for an image.
type Request struct {
	Ref         string
	Policy      string // Always, IfNotPresent or Never; empty: Kubernetes' default
	Credentials []registry.Credential
	// Near means that no registry of another host is asked that the settings do not name as a mirror.
	Near bool
}

// Progress says how far a request is. It may be read concurrently.
type Progress struct{ of atomic.Pointer[progress] }

// String is empty while nothing is known.
func (p *Progress) String() string {
	at := p.of.Load()
	if at == nil || at.total == 0 {
		return ""
	}
	const mega = 1e6
	return fmt.Sprintf("%.1f of %.1f MB", float64(min(at.received.Load(), at.total))/mega, float64(at.total)/mega)
}

// Get returns an image that is unpacked, or that the Keeper has. Release ends its use. The error is one of this
// package's, or ctx's.
func (l *Library) Get(ctx context.Context, r Request, p *Progress) (*Cached, error) {
	settings, judge, err := l.rules(r.Ref)
	if err != nil {
		return nil, err
	}
	img, err := l.layouts.Find(r.Ref)
	if err == nil {
		return l.unpacked(ctx, img, r, judge, p, "")
	}
	if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	ref, bad := name.ParseReference(r.Ref)
	if bad != nil {
		return nil, fmt.Errorf("%w: %q: %s", ErrInvalidName, r.Ref, clean(bad))
	}
	policy := r.Policy
	if policy == "" {
		policy = defaultPolicy(ref)
	}
	var unsigned error
	if policy != always {
		for _, n := range []string{written(r.Ref), canonical(ref)} {
			i := l.cache.named(n)
			if i == nil {
				continue
			}
			if has, err := l.cache.has(ctx, i); !has {
				l.Release(i)
				if err != nil {
					return nil, err
				}
				continue
			}
			if unsigned = l.signed(ctx, judge, i); unsigned == nil {
				return l.cache.use(i, []string{written(r.Ref)}), nil
			}
			l.Release(i)
			break
		}
	}
	switch {
	case policy == never && unsigned != nil:
		return nil, unsigned
	case policy == never:
		return nil, fmt.Errorf("%w: %s", ErrNeverPull, r.Ref)
	}
	var i *Cached
	err = l.pull(ctx, settings, ref, r, func(img *Image, host string) (err error) {
		i, err = l.unpacked(ctx, img, r, judge, p, host)
		return err
	})
	if err != nil && unsigned != nil {
		err = fmt.Errorf("%w; the image that is on the node: %w", err, unsigned)
	}
	return i, err
}

// rules returns how registries are reached, and what an image must have to be used.
func (l *Library) rules(ref string) (Settings, judge, error) {
	if n := Name(ref); n != path.Clean(n) { // it would get around the rules for another name
		return Settings{}, judge{}, fmt.Errorf("%w: %q", ErrInvalidName, ref)
	}
	settings, err := readSettings(l.cfg.Settings...)
	if err != nil {
		return settings, judge{}, fmt.Errorf("%w: %w", errTransfer, err)
	}
	j, err := settings.judgeOf(ref)
	return settings, j, err
}

// fits returns an error if a disk has no room for an image: it unpacks to twice of what is sent, or more, and what is
// left must be enough for a node that has no DiskPressure.
func fits(dir string, bytes int64) error {
	const most, part = 512 << 20, 10
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	free, size := int64(st.Bavail)*st.Frsize, int64(st.Blocks)*st.Frsize
	if needs := 2*bytes + min(most, size/part); free < needs {
		return fmt.Errorf("%w: %w: %d MB of the disk are free, and about %d MB must be", errTransfer, unix.ENOSPC, free/1e6,
			needs/1e6)
	}
	return nil
}

// Unpack gets an image as Get does, and writes its files into dir in one step: if dir is there, it is complete. The
// library does not keep it.
func (l *Library) Unpack(ctx context.Context, ref, dir string) error {
	settings, judge, err := l.rules(ref)
	if err != nil {
		return err
	}
	take := func(img *Image, host string) error {
		if img.close != nil {
			defer img.close(nil)
			defer context.AfterFunc(ctx, func() { img.close(context.Cause(ctx)) })()
		}
		if err := judge.verify(ctx, img.Digest, img.index); err != nil {
			return err
		}
		free, err := l.slot(host)(ctx)
		if err != nil {
			return err
		}
		defer free()
		if err := fits(filepath.Dir(dir), img.bytes); err != nil {
			return err
		}
		return img.Unpack(ctx, dir)
	}
	img, err := l.layouts.Find(ref)
	if err == nil {
		return take(img, "")
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	parsed, bad := name.ParseReference(ref)
	if bad != nil {
		return fmt.Errorf("%w: %q: %s", ErrInvalidName, ref, clean(bad))
	}
	return l.pull(ctx, settings, parsed, Request{Ref: ref}, take)
}

// Release ends the use of an image that Get returned.
func (l *Library) Release(i *Cached) { l.cache.release(i.Digest) }

// pull asks one place after the other for an image, until one has it and take does. It is not found only if all say so.
func (l *Library) pull(ctx context.Context, settings Settings, ref name.Reference, r Request,
	take func(img *Image, host string) error,
) error {
	sources, err := settings.Registries.Sources(ref, r.Credentials, l.cfg.Patience)
	if err != nil {
		return fmt.Errorf("%w: %q: %s", ErrInvalidName, r.Ref, clean(err))
	}
	kind, full, why := ErrNotFound, false, []string{}
	for _, s := range sources {
		if r.Near && !s.Near {
			continue
		}
		img, err := pull(ctx, s)
		if err == nil {
			err = take(img, s.Host)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrUnsigned):
			kind = ErrUnsigned
		case kind == ErrUnsigned:
		case errors.Is(err, ErrBroken) && kind != errTransfer:
			kind = ErrBroken
		case !errors.Is(err, ErrNotFound):
			kind = errTransfer
		}
		full = full || errors.Is(err, unix.ENOSPC)
		if text := clean(err); !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return pulling{kind, full, fmt.Sprintf("failed to pull image %q: %s", r.Ref, strings.Join(why, "; "))}
}

// pulling is why an image was not pulled.
type pulling struct {
	kind error
	full bool // the disk has no room
	text string
}

// Error implements error.
func (p pulling) Error() string { return p.text }

// Unwrap returns which of the package's errors it is, and ENOSPC if the disk has no room.
func (p pulling) Unwrap() []error {
	if p.full {
		return []error{p.kind, unix.ENOSPC}
	}
	return []error{p.kind}
}

// unpacked returns an image of a host, or of the disk, when it was judged and is unpacked.
func (l *Library) unpacked(ctx context.Context, img *Image, r Request, j judge, p *Progress, host string) (*Cached,
	error,
) {
	if !j.vouched(l.cache.find(img.Digest)) {
		if err := j.verify(ctx, img.Digest, img.index); err != nil {
			if img.close != nil {
				img.close(err)
			}
			return nil, err
		}
	}
	i, err := l.cache.ensure(ctx, img, namesOf(r.Ref, img), p, l.slot(host))
	if err == nil {
		l.vouch(j, i)
	}
	return i, err
}

// slot returns how to wait for the right to unpack from a host, which ends with the function that it returns.
func (l *Library) slot(host string) func(context.Context) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := l.slots[host]
	if free == nil {
		free = make(chan struct{}, maxWork)
		l.slots[host] = free
	}
	return func(ctx context.Context) (func(), error) {
		select {
		case free <- struct{}{}:
			return func() { <-free }, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Knows reports whether an image may be near: in a layout, in a mirror that the settings name, or on this host.
func (l *Library) Knows(ref string) bool {
	if _, err := l.layouts.Find(ref); !errors.Is(err, ErrNotFound) {
		return true
	}
	settings, err := readSettings(l.cfg.Settings...)
	if err != nil {
		return true // what they say is not known
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return false
	}
	r, ok := settings.Registries[registry.HostName(parsed.Context().RegistryStr())]
	return ok && len(r.Mirrors) > 0 || registry.IsLoopback(registry.HostOnly(parsed.Context().RegistryStr()))
}

// List returns the images that are unpacked, in order of their digests, and a channel that is closed when they change.
func (l *Library) List() ([]*Cached, <-chan struct{}) {
	images, _, changed := l.cache.list()
	return images, changed
}

// Leased returns the digests of images that jobs use.
func (l *Library) Leased() map[string]bool {
	_, leased, _ := l.cache.list()
	return leased
}

// Remove removes an image, unless a job uses it, or one did after the time that the caller knows.
func (l *Library) Remove(digest string, used time.Time) error { return l.cache.drop(digest, used) }

// Disk returns the size of the disk that the images are on, and what of it is free for the agent, in bytes.
func (l *Library) Disk() (capacity, available int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(l.cfg.disk(), &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// defaultPolicy is Always for an image whose tag is latest, and for one without. Source: Kubernetes.
func defaultPolicy(ref name.Reference) string {
	if tag, ok := ref.(name.Tag); ok && tag.TagStr() == "latest" {
		return always
	}
	return ifNotPresent
}

// namesOf returns the names that an image gets by a reference that leads to it: as the pod has it, for the scheduler
// compares that, in full, and by its digest.
func namesOf(ref string, img *Image) []string {
	out := []string{written(ref)}
	add := func(n string) {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	if parsed, err := name.ParseReference(ref); err == nil {
		add(canonical(parsed))
		add(inFull(parsed) + "@" + img.Digest)
		if img.index != "" {
			add(inFull(parsed) + "@" + img.index)
		}
	}
	return out
}

// written returns a reference as it is, with a tag if it has none.
func written(ref string) string {
	if _, tag, digest := split(ref); tag == "" && digest == "" {
		return ref + ":latest"
	}
	return ref
}

func inFull(ref name.Reference) string {
	return registry.HostName(ref.Context().RegistryStr()) + "/" + ref.Context().RepositoryStr()
}

func canonical(ref name.Reference) string {
	if _, ok := ref.(name.Digest); ok {
		return inFull(ref) + "@" + ref.Identifier()
	}
	return inFull(ref) + ":" + ref.Identifier()
}

// maxMessage bounds what of a registry's words gets into a status, in bytes.
const maxMessage = 512

// clean returns an error's text as a status may have it: a registry may say anything.
func clean(err error) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "?"))
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}
