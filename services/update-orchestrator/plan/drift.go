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
	appliedAt, liveAt int64         // revisions; 0: not known yet
	created           bool          // only that it is there counts
	before            []string      // how it had drifted when its manifest was about to be applied
	was               object.Object // as it was then; nil if it was gone
}

// drift returns how the object has drifted; empty if it has not.
func (s *sight) drift() []string {
	switch {
	case s.liveAt == 0 || s.live == nil && s.liveAt < s.appliedAt:
		return nil
	case s.live == nil && (s.created || s.applied != nil):
		return []string{TheObject}
	case s.live == nil || s.created || s.applied == nil || s.liveAt <= s.appliedAt ||
		s.live.GetMetadata().GetDeletionTimestamp() != nil:
		return nil // one that is deleted is made again once it is gone
	}
	return differences(s.applied, s.live)
}

// TheObject is what has drifted if there is no object.
const TheObject = "the object"

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
	if len(d.seen[id].drift()) > 0 {
		d.drifted[id] = true
	} else {
		delete(d.drifted, id)
	}
}

// Applying takes in that a manifest is about to be applied: the watch may show what that does before Applied or
// Created.
func (d *Drift) Applying(id string) {
	s := d.of(id)
	s.before, s.was = s.drift(), s.live
}

// Applied takes in an object as the application of its manifest left it, at a revision. It returns what of an object
// that had drifted is as it was after the application before; see differences.
func (d *Drift) Applied(id string, o object.Object, revision int64) []string {
	s := d.of(id)
	back := s.before
	if len(back) > 0 && s.was != nil { // then it was applied before
		now := differences(s.was, o)
		back = slices.DeleteFunc(back, func(path string) bool { return !slices.Contains(now, path) })
		other := differences(s.applied, o) // also by others, and of no concern to the manifest
		back = slices.DeleteFunc(back, func(path string) bool { return slices.Contains(other, path) })
	}
	s.applied, s.appliedAt, s.created, s.before, s.was = o, revision, false, nil, nil
	d.note(id)
	return back
}

// Created takes in that an object is there of which only that counts. It returns TheObject if it was gone.
func (d *Drift) Created(id string) []string {
	s := d.of(id)
	back := s.before
	s.created, s.before, s.was = true, nil, nil
	d.note(id)
	return back
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
// revision and generation. A list is one path, and so is a document without a schema.
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
		case f.IsList() || f.Message() == nil || f.Message().ParentFile().Package() == "google.protobuf":
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
