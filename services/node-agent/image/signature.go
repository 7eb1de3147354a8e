package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/windlass-dev/windlass/kit/registry"
	"github.com/windlass-dev/windlass/kit/release"
)

// ErrUnsigned means that an image has not the signatures that the settings ask for, or that they cannot be checked.
var ErrUnsigned = errors.New("image is not signed as the settings of registries ask")

// everyImage are the images of a rule for all.
const everyImage = "*"

// Signatures say by which keys some images must be signed.
type Signatures struct {
	// Images are those of a registry or of a part of one: example.com, example.com/team, example.com/team/web; or "*".
	// The longest that matches an image counts.
	Images string `json:"images"`
	// KeyRings are files of OpenPGP keys. Each of them must have a key that signed the image.
	KeyRings []string `json:"keyRings"`
	// Stores have the signatures: https://, file:///DIR, or http:// on a loopback address.
	Stores []string `json:"stores"`
}

func (s Signatures) check() error {
	if clean := path.Clean(s.Images); s.Images == "" || s.Images != clean || strings.ContainsAny(s.Images, " @") ||
		strings.Contains(s.Images, everyImage) && s.Images != everyImage {
		return fmt.Errorf(`images: %q must be a registry, the beginning of a repository, or "*"`, s.Images)
	}
	if len(s.KeyRings) == 0 {
		return errors.New("keyRings: at least one is needed")
	}
	for i, file := range s.KeyRings {
		if !filepath.IsAbs(file) {
			return fmt.Errorf("keyRings[%d]: %q must be an absolute path", i, file)
		}
	}
	if len(s.Stores) == 0 {
		return errors.New("stores: at least one is needed")
	}
	for i, store := range s.Stores {
		u, err := url.Parse(store)
		switch {
		case err != nil:
			return fmt.Errorf("stores[%d]: %w", i, err)
		case u.Scheme == "https" && u.Host != "", u.Scheme == "file" && u.Host == "" && path.IsAbs(u.Path),
			u.Scheme == "http" && registry.IsLoopback(u.Hostname()):
		default:
			return fmt.Errorf("stores[%d]: %q must begin with https:// or file:///", i, store)
		}
	}
	return nil
}

// covers reports whether a rule is for the repository of an image, by its name in full.
func (s Signatures) covers(repository string) bool {
	return s.Images == everyImage || repository == s.Images || strings.HasPrefix(repository, s.Images+"/")
}

// rule returns the rule for the signatures of an image; false without one.
func (s Settings) rule(ref string) (of Signatures, found bool) {
	repository := Name(ref) // of a layout on the disk, whose name need not be one of a registry
	if parsed, err := name.ParseReference(ref); err == nil {
		repository = inFull(parsed)
	}
	for _, r := range s.Signatures {
		if r.covers(repository) && (!found || of.Images == everyImage || len(r.Images) > len(of.Images)) {
			of, found = r, true
		}
	}
	return of, found
}

// judge checks the signatures of one image.
type judge struct {
	verifier release.Verifier
	keys     string // hash of the rings; empty if no signature is asked for
}

// judgeOf returns who judges the images of a reference.
func (s Settings) judgeOf(ref string) (judge, error) {
	rule, found := s.rule(ref)
	if !found {
		return judge{}, nil
	}
	j, sum := judge{verifier: release.Verifier{Stores: rule.Stores}}, sha256.New()
	for _, file := range rule.KeyRings {
		raw, err := os.ReadFile(file)
		if err != nil {
			return judge{}, fmt.Errorf("%w: %w", ErrUnsigned, err)
		}
		ring, err := release.ReadRing(file, raw)
		if err != nil {
			return judge{}, fmt.Errorf("%w: %w", ErrUnsigned, err)
		}
		j.verifier.Rings = append(j.verifier.Rings, ring)
		one := sha256.Sum256(raw)
		sum.Write(one[:])
	}
	j.keys = hex.EncodeToString(sum.Sum(nil))
	return j, nil
}

// verify checks that an image is signed by its digest, or by that of an index that led to it.
func (j judge) verify(ctx context.Context, digests ...string) error {
	if j.keys == "" {
		return nil
	}
	var why error
	for _, digest := range digests {
		if digest == "" {
			continue
		}
		err := j.verifier.Verify(ctx, digest)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		why = errors.Join(why, err)
	}
	return fmt.Errorf("%w: %s", ErrUnsigned, clean(why))
}

// vouched reports whether an image needs no check: what was found once holds as long as the rings are the same.
func (j judge) vouched(i *Cached) bool {
	return j.keys == "" || i != nil && slices.Contains(i.Signed, j.keys)
}

// signed checks an image that is unpacked.
func (l *Library) signed(ctx context.Context, j judge, i *Cached) error {
	if j.vouched(i) {
		return nil
	}
	digests := []string{i.Digest}
	for _, n := range i.Names {
		if _, _, digest := split(n); digest != "" && !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
	}
	if err := j.verify(ctx, digests...); err != nil {
		return err
	}
	l.vouch(j, i)
	return nil
}

// maxSigned is how many sets of key rings are noted of an image: those before and after a change of keys.
const maxSigned = 4

// vouch notes that an image is signed.
func (l *Library) vouch(j judge, i *Cached) {
	if j.vouched(i) {
		return
	}
	l.cache.note(i.Digest, func(o *Cached) {
		o.Signed = append([]string{j.keys}, o.Signed...)
		o.Signed = o.Signed[:min(len(o.Signed), maxSigned)]
	})
}
