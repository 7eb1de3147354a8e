package resource

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of what a cache keeps to find equal messages: about 1 MB for a kind of many objects.
const (
	shareCount = 2048 // messages, twice
	shareBytes = 1024 // of an encoded message; what is in a larger one is shared by itself
)

// parts finds the equal messages and maps in the objects of a cache, such as the containers, tolerations and labels of
// the pods of one owner, so that the cache keeps them once. They are shared because nothing modifies an object of a
// cache. A part that was not seen for shareCount others is forgotten, which only means that the next one is kept, too.
type parts struct {
	recent, older map[part]protoreflect.Message
	buffer        []byte
}

// part is the content of a message.
type part struct {
	of    protoreflect.MessageDescriptor
	bytes string // deterministic encoding
}

// share replaces what is below the metadata, spec and status of an object with equal messages of other objects.
func (p *parts) share(object protoreflect.Message) {
	object.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			p.within(v.Message())
		}
		return true
	})
}

// within shares the fields of a message.
func (p *parts) within(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			alone := m.New() // a map has no encoding of its own
			alone.Set(f, v)
			m.Set(f, p.one(alone).Get(f))
		case f.Message() == nil:
		case f.IsList():
			for i, list := 0, v.List(); i < list.Len(); i++ {
				list.Set(i, protoreflect.ValueOfMessage(p.message(list.Get(i).Message())))
			}
		default:
			m.Set(f, protoreflect.ValueOfMessage(p.message(v.Message())))
		}
		return true
	})
}

// message returns m, or a message equal to it; the fields of a new one are shared in turn.
func (p *parts) message(m protoreflect.Message) protoreflect.Message {
	same := p.one(m)
	if same == m {
		p.within(m)
	}
	return same
}

// one returns the message equal to m that was seen before, or m.
func (p *parts) one(m protoreflect.Message) protoreflect.Message {
	if proto.Size(m.Interface()) > shareBytes {
		return m
	}
	var err error
	p.buffer, err = proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(p.buffer[:0],
		m.Interface())
	if err != nil {
		return m
	}
	key := part{of: m.Descriptor(), bytes: string(p.buffer)}
	same, recent := p.recent[key]
	if !recent {
		if same = p.older[key]; same == nil {
			same = m
		}
		if p.recent == nil || len(p.recent) == shareCount {
			p.recent, p.older = map[part]protoreflect.Message{}, p.recent
		}
		p.recent[key] = same
	}
	if checkShared && !proto.Equal(same.Interface(), m.Interface()) {
		panic(fmt.Sprintf("an object of a cache was modified: %v was %v", same.Interface(), m.Interface()))
	}
	return same
}
