package rest

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/kit/manifest"
)

// lines prints one message of a stream. A message of a watch, which has all events of one revision, becomes one line
// for each event, as Kubernetes' watches are; any other message is a line of its own.
func lines(m proto.Message) ([]byte, error) {
	shape, ok := watchShape(m.ProtoReflect().Descriptor())
	var out bytes.Buffer
	if !ok {
		data, err := manifest.Encode(m)
		if err != nil {
			return nil, err
		}
		out.Write(data)
		out.WriteByte('\n')
		return out.Bytes(), nil
	}
	events := m.ProtoReflect().Get(shape.events).List()
	for i := range events.Len() {
		event := events.Get(i).Message()
		object, err := manifest.Encode(event.Get(shape.object).Message().Interface())
		if err != nil {
			return nil, err
		}
		out.WriteString(`{"type":`)
		out.Write(quoted(event.Get(shape.kind).String()))
		out.WriteString(`,"object":`)
		out.Write(object)
		out.WriteString("}\n")
	}
	if m.ProtoReflect().Get(shape.bookmark).Bool() {
		out.WriteString(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":`)
		out.Write(quoted(m.ProtoReflect().Get(shape.revision).String()))
		out.WriteString("}}}\n")
	}
	return out.Bytes(), nil
}

// watch is the fields of a message of a watch.
type watch struct{ events, revision, bookmark, kind, object protoreflect.FieldDescriptor }

// watchShape reports whether d is a message of a watch: events of a type and an object, a revision, a bookmark.
func watchShape(d protoreflect.MessageDescriptor) (watch, bool) {
	w := watch{
		events:   d.Fields().ByName("events"),
		revision: d.Fields().ByName("resource_version"),
		bookmark: d.Fields().ByName("bookmark"),
	}
	if w.events == nil || !w.events.IsList() || w.events.Message() == nil ||
		w.revision == nil || w.revision.Kind() != protoreflect.StringKind ||
		w.bookmark == nil || w.bookmark.Kind() != protoreflect.BoolKind {
		return watch{}, false
	}
	w.kind = w.events.Message().Fields().ByName("type")
	w.object = w.events.Message().Fields().ByName("object")
	ok := w.kind != nil && w.kind.Kind() == protoreflect.StringKind && w.object != nil && w.object.Message() != nil
	return w, ok
}

func quoted(s string) []byte {
	data, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`)
	}
	return data
}
