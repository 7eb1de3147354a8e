package proxy

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec hands messages of the proxy on as the bytes they came in, and does protobuf for everything else: the gateway's
// own services run on the same server.
func Codec() encoding.CodecV2 { return codec{protobuf: encoding.GetCodecV2(proto.Name)} }

// frame is a message in transit. It is marshalled once, which hands its buffers over.
type frame struct{ data mem.BufferSlice }

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
