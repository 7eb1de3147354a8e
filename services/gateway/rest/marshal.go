package rest

import (
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/httpbody"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// documents reads and writes messages as the documents spell them: strictly on the way in, without empty values on the
// way out, streams as one JSON document a line.
type documents struct {
	media  string
	encode func(proto.Message) ([]byte, error)
}

var (
	_ runtime.Marshaler         = documents{}
	_ runtime.StreamContentType = documents{}
	_ runtime.Delimited         = documents{}
)

func jsonDocuments() documents { return documents{media: mediaJSON, encode: manifest.Encode} }
func yamlDocuments() documents { return documents{media: mediaYAML, encode: manifest.YAML} }

// ContentType is the media type of one document.
func (d documents) ContentType(any) string { return d.media }

// StreamContentType is the media type of a stream.
func (documents) StreamContentType(any) string { return mediaNDJSON }

// Delimiter is empty: a message of a watch may be many lines or none, so each line ends itself.
func (documents) Delimiter() []byte { return []byte{} }

// Marshal writes a message, or what the runtime makes of a stream: a map whose only key is "result" or "error".
func (d documents) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *statuspb.Status:
		return append(statusJSON(status.FromProto(v)), '\n'), nil
	case proto.Message:
		data, err := d.encode(v)
		if err == nil && d.media == mediaJSON {
			data = append(data, '\n')
		}
		return data, err
	case map[string]any:
		if m, ok := v["result"].(proto.Message); ok {
			return lines(m)
		}
	case map[string]proto.Message:
		if st, ok := v["error"].(*statuspb.Status); ok {
			return append(statusJSON(status.FromProto(st)), '\n'), nil
		}
	}
	return nil, fmt.Errorf("no document for %T", v)
}

// Unmarshal reads one document into a message or a pointer to one.
func (documents) Unmarshal(data []byte, v any) error {
	m, err := target(v)
	if err != nil {
		return err
	}
	return manifest.Decode(data, m)
}

// NewDecoder reads the one document that is a request's body.
func (d documents) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		b, read := r.(*body)
		var data []byte
		var err error
		if read {
			data = b.take()
		} else if data, err = io.ReadAll(r); err != nil {
			return err
		}
		if len(data) == 0 {
			return io.EOF
		}
		m, err := target(v)
		if err != nil {
			return err
		}
		err = decodeProblem(manifest.DecodeUpTo(data, m, large.MaxMessage)) // a route may have a lesser limit
		if read {
			b.problem = err
		}
		return err
	})
}

// NewEncoder is never used by generated handlers; it writes one document.
func (d documents) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		data, err := d.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// target is the message behind v, which for a field of a request is a pointer to a pointer.
func target(v any) (proto.Message, error) {
	if m, ok := v.(proto.Message); ok {
		return m, nil
	}
	p := reflect.ValueOf(v)
	if p.Kind() == reflect.Pointer && p.Elem().Kind() == reflect.Pointer {
		if p.Elem().IsNil() {
			p.Elem().Set(reflect.New(p.Elem().Type().Elem()))
		}
		if m, ok := p.Elem().Interface().(proto.Message); ok {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no document can be read into %T", v)
}

// decodeProblem says in a status what is wrong with a document, every path of it.
func decodeProblem(err error) error {
	if err == nil {
		return nil
	}
	if all := new(manifest.Errors); errors.As(err, &all) {
		fields := make([]object.Fault, 0, len(all.Problems))
		for _, p := range all.Problems {
			fields = append(fields, object.Fault{Path: p.Path, Description: p.Message})
		}
		return rpcerr.Invalid(fields...)
	}
	return rpcerr.Invalid(object.Fault{Description: err.Error()})
}

// patch reads a patch as the bytes that it is, with its media type, into the request's google.api.HttpBody.
type patch struct {
	documents // for the answer
	media     string
}

// NewDecoder reads the body of a PATCH.
func (p patch) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		into, ok := v.(**httpbody.HttpBody)
		if !ok {
			return fmt.Errorf("a patch is not for %T", v)
		}
		*into = &httpbody.HttpBody{ContentType: p.media, Data: data}
		return nil
	})
}
