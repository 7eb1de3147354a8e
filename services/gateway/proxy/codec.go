package proxy

import (
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec hands messages of the proxy on as the bytes they came in, and does protobuf for everything else: the gateway's
// own services run on the same server.
func Codec() encoding.CodecV2 { return codec{protobuf: encoding.GetCodecV2(proto.Name)} }

// frame is a message in transit. It is marshalled once, which hands its buffers over.
type frame struct{ data mem.BufferSlice }

// hold has release called when the message has been written or dropped. That may be long after SendMsg has returned,
// and after the call has ended: what a client does not read stays in the queue of its connection. release may be called
// twice.
func (f *frame) hold(release func()) {
	m := &message{release: release}
	m.left.Store(1)
	buffers := make(mem.BufferSlice, len(f.data))
	for i, b := range f.data {
		data := b.ReadOnlyData()
		if mem.IsBelowBufferPoolingThreshold(cap(data)) {
			buffers[i] = b // at most 1 KiB; gRPC does not report the end of these
			continue
		}
		m.left.Add(1)
		buffers[i] = mem.NewBuffer(&data, part{m, b})
	}
	f.data = buffers
	// The transport does not free the queue of a connection that is lost: the collector finds it.
	runtime.AddCleanup(m, func(release func()) { release() }, release)
	m.done()
}

// message is what the buffers of a message have in common while they are in a queue.
type message struct {
	left    atomic.Int64 // buffers that are not gone
	release func()
}

func (m *message) done() {
	if m.left.Add(-1) == 0 {
		m.release()
	}
}

// part is the pool to which one buffer of a message returns.
type part struct {
	message *message
	buffer  mem.Buffer
}

// Get is part of mem.BufferPool; nothing is taken from a part.
func (part) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put is part of mem.BufferPool.
func (p part) Put(*[]byte) {
	p.buffer.Free()
	p.message.done()
}

type codec struct{ protobuf encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.protobuf.Marshal(v)
	}
	data := f.data
	f.data = nil
	return data, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.protobuf.Unmarshal(data, v)
	}
	data.Ref()
	f.data = data
	return nil
}

func (codec) Name() string { return proto.Name }
