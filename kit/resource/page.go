package resource

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"iter"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

// pageToken is the position at which a list continues. It is opaque to callers.
type pageToken struct {
	Revision int64  `json:"r"`
	After    string `json:"a"` // the key of the last object's record, see Table.key
}

func (t pageToken) String() string {
	raw, _ := json.Marshal(t) // two plain fields always marshal
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parsePageToken(s string) (pageToken, error) {
	var t pageToken
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Revision <= 0 {
		return t, rpcerr.Invalid(object.Fault{Path: "continue", Description: "is not a token of a previous page"})
	}
	return t, nil
}

// page is a part of a list. All pages of a list are at one revision.
type page[T object.Object] struct {
	items []T // shared with the cache: they must not be modified
	meta  *metav1.ListMeta
	limit int // most items; 0: all
	bytes int // encoded size of the items; counted only if there is a limit
}

// takes adds an object and reports true, unless the page is full: it has limit objects, or the size of a message. A
// list without a limit is one page of any size.
func (p *page[T]) takes(o T) bool {
	if p.limit > 0 {
		n := proto.Size(o)
		if len(p.items) == p.limit || len(p.items) > 0 && p.bytes+n > messageBytes {
			return false
		}
		p.bytes += n
	}
	p.items = append(p.items, o)
	return true
}

// goesOn records that the list has further pages. rest is how many objects they have, -1 if that is not known.
func (p *page[T]) goesOn(revision int64, last string, rest int) {
	p.meta.Continue = pageToken{revision, last}.String()
	if rest >= 0 {
		p.meta.RemainingItemCount = proto.Int32(int32(rest))
	}
}

// page returns the page of a list that a request asks for. A new list is read from the cache, once the cache has
// everything that was written before the call. Its further pages are from the same view of the cache while that is
// kept, and from etcd after that. A list at a revision that the caller names is also from etcd.
func (t *Table[T]) page(ctx context.Context, r request, sel Selection) (*page[T], error) {
	revision, err := ParseRevision(r.text("resource_version"))
	if err != nil {
		return nil, err
	}
	namespace, after := r.text("namespace"), ""
	if c := r.text("continue"); c != "" {
		token, err := parsePageToken(c)
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(token.After, t.within(namespace)) {
			return nil, rpcerr.Invalid(object.Fault{Path: "continue", Description: "belongs to another list"})
		}
		revision, after = token.Revision, token.After
	}
	p := &page[T]{meta: &metav1.ListMeta{}, limit: int(r.number("limit"))}
	if revision == 0 {
		if err := t.CatchUp(ctx); err != nil {
			return nil, err
		}
		objects, v := t.snapshot(namespace, t.interestOf(namespace, sel))
		t.fill(p, objects, v, namespace, sel)
		return p, nil
	}
	if v := t.keptView(revision); v != nil {
		t.fill(p, v.after(namespace, t.keyOf(after)), v, namespace, sel)
		return p, nil
	}
	return p, t.fillFromStore(ctx, p, namespace, sel, store.ListOptions{Revision: revision, After: after})
}

// within returns the prefix of the keys of a namespace's records, or of all records if it is "".
func (t *Table[T]) within(namespace string) string {
	if namespace == "" {
		return t.prefix()
	}
	return t.prefix() + namespace + "/"
}

// fill fills a page with the selected objects of a view, and keeps the view if there are more.
func (t *Table[T]) fill(p *page[T], objects iter.Seq[T], v *view[T], namespace string, sel Selection) {
	p.meta.ResourceVersion = FormatRevision(v.revision)
	rest := 0
	for o := range objects {
		switch {
		case namespace != "" && o.GetMetadata().GetNamespace() != namespace || !sel.Matches(o):
			continue
		case rest == 0 && p.takes(o):
			continue
		}
		if rest++; !sel.Everything() {
			break
		}
	}
	if rest == 0 {
		return
	}
	if !sel.Everything() {
		rest = -1
	}
	t.keepView(v)
	p.goesOn(v.revision, t.key(object.KeyOf(p.items[len(p.items)-1])), rest)
}

// fillFromStore fills a page with the selected objects that etcd has at a revision.
func (t *Table[T]) fillFromStore(ctx context.Context, p *page[T], namespace string, sel Selection,
	o store.ListOptions,
) error {
	if o.Limit = p.limit; o.Limit > 0 {
		o.Limit++ // with one more record the first response shows whether the list continues
	}
	for {
		got, err := t.st.List(ctx, t.within(namespace), o)
		if errors.Is(err, store.ErrCompacted) {
			return rpcerr.Expired("the revision of this list is no longer available: list again from the beginning")
		}
		if err != nil {
			return err
		}
		o.Revision = got.Revision
		p.meta.ResourceVersion = FormatRevision(got.Revision)
		for i, rec := range got.Records {
			o.After = rec.Key
			obj, err := t.object(rec)
			if err != nil || !sel.Matches(obj) || p.takes(obj) {
				continue
			}
			rest := -1
			if sel.Everything() {
				rest = int(got.Remaining) + len(got.Records) - i
			}
			p.goesOn(got.Revision, t.key(object.KeyOf(p.items[len(p.items)-1])), rest)
			return nil
		}
		if !got.More {
			return nil
		}
	}
}
