package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Drift is what is known of the objects of a release that is kept: how each was when its manifest was applied last, and
// how its owner has it now, both by the ID of the manifest. Whether a change concerns the manifest at all is known by
// the owner alone: what is changed is applied again, which changes nothing if the manifest does not speak of it. The
// zero value knows nothing. It is not safe for concurrent use.
type Drift struct {
	seen    map[string]*sight
	drifted map[string]bool
}

// sight is what is known of one object.
type sight struct {
	applied, live     object.Object
	appliedAt, liveAt int64 // revisions; 0: not known yet
	created           bool  // only that it is there counts

	// How it had drifted when that was seen first: the watch may show the application before that is noted.
	changed []string
	was     object.Object
}

func (s *sight) drifted() bool {
	switch {
	case s.liveAt == 0 || s.live == nil && s.liveAt < s.appliedAt:
		return false
	case s.live == nil:
		return s.created || s.applied != nil
	case s.created || s.applied == nil || s.liveAt <= s.appliedAt || s.live.GetMetadata().GetDeletionTimestamp() != nil:
		return false // one that is deleted is made again once it is gone
	}
	return len(differences(s.applied, s.live)) > 0
}

func (d *Drift) of(id string) *sight {
	if d.seen == nil {
		d.seen, d.drifted = map[string]*sight{}, map[string]bool{}
	}
	if d.seen[id] == nil {
		d.seen[id] = &sight{}
	}
	return d.seen[id]
}

func (d *Drift) note(id string) {
	s := d.seen[id]
	if !s.drifted() {
		delete(d.drifted, id)
		return
	}
	d.drifted[id] = true
	switch {
	case s.changed != nil:
	case s.live == nil:
		s.changed = []string{theObject}
	default:
		s.changed, s.was = differences(s.applied, s.live), s.live
	}
}

// theObject is what differs if there is no object.
const theObject = "the object"

// Applied takes in an object as the application of its manifest left it, at a revision. It returns what of an object
// that had drifted is as the release has it again; see differences.
func (d *Drift) Applied(id string, o object.Object, revision int64) []string {
	s := d.of(id)
	back := s.changed
	if s.was != nil {
		now := differences(s.was, o)
		back = slices.DeleteFunc(back, func(path string) bool { return !slices.Contains(now, path) })
	}
	s.applied, s.appliedAt, s.created, s.changed, s.was = o, revision, false, nil, nil
	d.note(id)
	return back
}

// Created takes in that an object is there of which only that counts.
func (d *Drift) Created(id string) {
	s := d.of(id)
	s.created, s.changed = true, nil
	d.note(id)
}

// Saw takes in an object as its owner has it at a revision; nil if there is none. It reports whether that has drifted.
func (d *Drift) Saw(id string, o object.Object, revision int64) bool {
	s := d.of(id)
	s.live, s.liveAt = o, revision
	d.note(id)
	return d.drifted[id]
}

// Drifted reports whether the object of a manifest was changed or removed since it was applied.
func (d *Drift) Drifted(id string) bool { return d.drifted[id] }

// differences returns the paths at which two states of an object differ, without its status and what its owner counts:
// revision and generation. A list is one path.
func differences(a, b object.Object) []string {
	var out []string
	differ(&out, "", a.ProtoReflect(), b.ProtoReflect())
	return out
}

// uncompared are the fields of metadata that change with every write.
var uncompared = []protoreflect.Name{"resource_version", "generation"}

func differ(out *[]string, path string, a, b protoreflect.Message) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if path == "" && f.Name() == "status" || path == "metadata" && slices.Contains(uncompared, f.Name()) {
			continue
		}
		at := f.JSONName()
		if path != "" {
			at = path + "." + at
		}
		switch x, y := a.Get(f), b.Get(f); {
		case a.Has(f) != b.Has(f):
			*out = append(*out, at)
		case !a.Has(f) || x.Equal(y):
		case f.IsMap():
			differMaps(out, at, x.Map(), y.Map())
		case f.IsList() || f.Message() == nil:
			*out = append(*out, at)
		default:
			differ(out, at, x.Message(), y.Message())
		}
	}
}

func differMaps(out *[]string, path string, a, b protoreflect.Map) {
	var keys []string
	for one, other := range map[protoreflect.Map]protoreflect.Map{a: b, b: a} {
		one.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			if !other.Has(k) || !other.Get(k).Equal(v) {
				keys = append(keys, k.String())
			}
			return true
		})
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		*out = append(*out, fmt.Sprintf("%s[%s]", path, k))
	}
}
