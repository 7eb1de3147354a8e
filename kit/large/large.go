// Package large receives the requests of plan methods, which may bring a cluster of their own and are therefore larger
// than others: piece by piece, so that room for one is taken before it is in memory, and with a limit of their own.
package large

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// MaxMessage is the largest request of a plan method in bytes, after decompression.
	MaxMessage = 64 << 20
	// Ordinary is the size in bytes up to which a request needs no room of its own.
	Ordinary = 4 << 20
	// Uncounted is the memory in bytes up to which the decoded message of a call is not counted.
	Uncounted = 1 << 20
	// MaxOrdinary is the memory in bytes that the decoded message of a call may take, except that of a plan. Messages of a
	// few bytes per object or number may take hundreds of times their size.
	MaxOrdinary = 64 << 20
	// piece is how much of a message is asked of the client at a time.
	piece = 256 << 10
)

var known sync.Map // whether a method may have large requests, by its full name

// Method reports whether a method may have large requests, by its full name such as
// "/windlass.scheduling.v1.PodService/ExplainPod": it answers one request, and only plans.
func Method(full string) bool {
	if is, ok := known.Load(full); ok {
		return is.(bool)
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(
		protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")))
	if err != nil {
		return false // not kept: callers choose such names
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	is := ok && Plans(m)
	known.Store(full, is)
	return is
}

// Plans is Method for a descriptor.
func Plans(m protoreflect.MethodDescriptor) bool {
	access, _ := proto.GetExtension(m.Options(), metav1.E_Access).(*metav1.Access)
	return access.GetVerb() == "plan" && !access.GetMutating() && !m.IsStreamingClient() && !m.IsStreamingServer()
}

// stream is the part of grpc-go's stream of a server below its own limit and its decoding. Its methods are exported;
// its type is not.
type stream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
}

// Receivable reports whether Receive works for the call of ctx. It does unless another version of grpc-go has other
// streams; then the limit of the server applies.
func Receivable(ctx context.Context) bool {
	_, ok := grpc.ServerTransportStreamFromContext(ctx).(stream)
	return ok
}

// Receive reads the next message of the call of ctx. room is called with the bytes that the message takes, before these
// are read: with its size, and, if it is compressed, again with what it takes together with what it becomes. An error
// of room is returned as it is. io.EOF means that there is no message.
func Receive(ctx context.Context, most int, room func(total int) error) (mem.BufferSlice, error) {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(stream)
	if !ok {
		return nil, status.Error(codes.Internal, "internal error")
	}
	header := make([]byte, 5)
	if err := s.ReadMessageHeader(header); err != nil {
		return nil, received(err)
	}
	size, compressed := int64(binary.BigEndian.Uint32(header[1:])), header[0] == 1
	switch {
	case size > int64(most):
		return nil, tooLarge(most)
	case header[0] > 1 || compressed && s.RecvCompress() != gzip.Name:
		return nil, status.Errorf(codes.Unimplemented, "a message that is compressed by %q cannot be read", s.RecvCompress())
	}
	if err := room(int(size)); err != nil {
		return nil, err
	}
	data, err := read(s, int(size))
	if err != nil || !compressed {
		return data, err
	}
	defer data.Free()
	becomes := expanded(data)
	if becomes > int64(most) {
		return nil, tooLarge(most)
	}
	if err := room(int(size + becomes)); err != nil {
		return nil, err
	}
	return expand(data, int(becomes))
}

// expanded returns the size that data has after decompression by what gzip says at its end. It may be a lie: no more
// may be decompressed.
func expanded(data mem.BufferSlice) int64 {
	end := make([]byte, 4)
	n := data.Len()
	if n < len(end) {
		return 0
	}
	for _, b := range data { // the last four bytes may be in two buffers
		part := b.ReadOnlyData()
		end = append(end, part[max(0, len(part)-4):]...)
		end = end[len(end)-4:]
	}
	return int64(binary.LittleEndian.Uint32(end))
}

// read reads a message in pieces: a client sends no more than it was asked for, and what its connection has room for.
func read(s stream, size int) (mem.BufferSlice, error) {
	var data mem.BufferSlice
	for left := size; left > 0; {
		next, err := s.Read(min(left, piece))
		if err != nil {
			data.Free()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, received(err)
		}
		left -= next.Len()
		data = append(data, next...)
	}
	return data, nil
}

// expand decompresses a message that becomes as large as size.
func expand(data mem.BufferSlice, size int) (mem.BufferSlice, error) {
	from := data.Reader()
	defer from.Close()
	to, err := encoding.GetCompressor(gzip.Name).Decompress(from)
	if err != nil {
		return nil, unreadable(err)
	}
	out, err := mem.ReadAll(io.LimitReader(to, int64(size)+1), mem.DefaultBufferPool())
	if err == nil && out.Len() > size {
		err = errors.New("it becomes larger than it says")
	}
	if err != nil {
		out.Free()
		return nil, unreadable(err)
	}
	return out, nil
}

func unreadable(err error) error {
	return rpcerr.Invalid(object.Fault{Description: fmt.Sprintf("the message cannot be decompressed: %v", err)})
}

func tooLarge(most int) error {
	return rpcerr.TooMany(fmt.Sprintf("the message is larger than %d bytes", most), 0)
}

// received maps an error of the transport as grpc-go does.
func received(err error) error {
	if err == io.EOF {
		return err
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if err == io.ErrUnexpectedEOF {
		return status.Error(codes.Internal, "the message did not come to its end")
	}
	return status.FromContextError(err).Err()
}

// memoryError is the refusal of a message that takes more memory than there is for it.
func memoryError(needs, has int) error {
	return rpcerr.TooMany(fmt.Sprintf(
		"the request needs about %d MiB of memory, and large requests may use %d MiB here", needs>>20, has>>20), 0)
}
