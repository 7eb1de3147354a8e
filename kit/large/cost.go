package large

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a decoded message takes beside its bytes, by measurement of grpc-go's generated types: rather more than less.
const (
	perMessage = 64
	perField   = 16 // of the message's type, present or not
	perEntry   = 96 // of a map
	perText    = 24
	deepest    = 64
)

// Cost returns about how many bytes of memory a message of a type takes once it is decoded from data. It is a bound on
// what a caller can have allocated with few bytes, such as a million of empty objects; it does not allocate.
func Cost(d protoreflect.MessageDescriptor, data []byte) int { return cost(d, data, 0) }

var sizes sync.Map // of the types of messages, by their descriptors

func sizeOf(d protoreflect.MessageDescriptor) int {
	if n, ok := sizes.Load(d.FullName()); ok {
		return n.(int)
	}
	n := perMessage + perField*d.Fields().Len()
	sizes.Store(d.FullName(), n)
	return n
}

func cost(d protoreflect.MessageDescriptor, data []byte, depth int) int {
	total := sizeOf(d)
	if depth > deepest {
		return total + len(data)
	}
	fields := d.Fields()
	for len(data) > 0 {
		number, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return total + len(data) // decoding fails here
		}
		data = data[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, typ, data); n < 0 {
				return total + len(data)
			}
			data, total = data[n:], total+perField
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return total + len(data)
		}
		data = data[n:]
		f := fields.ByNumber(number)
		switch {
		case f == nil:
			total += perText + len(value)
		case f.IsMap():
			total += perEntry + cost(f.Message(), value, depth+1)
		case f.Message() != nil:
			total += perField + cost(f.Message(), value, depth+1)
		case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind:
			total += perText + len(value)
		default: // packed numbers
			total += perText + 8*len(value)
		}
	}
	return total
}

// CostOfJSON returns about how many bytes of memory a message takes once it is decoded from JSON, with the text, a copy
// of it, and the bytes that are made of it for another service.
func CostOfJSON(data []byte) int {
	composites, scalars := 0, 0
	begins := true // what comes next that is no space begins a value or a key
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case ' ', '\t', '\n', '\r':
		case '{', '[':
			composites++
			begins = true
		case ',':
			begins = true
		case ':':
			scalars-- // what came before is a key
			begins = true
		case '}', ']':
			begins = false
		case '"':
			scalars++
			begins = false
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		default: // of a number, true, false or null
			if begins {
				scalars++
			}
			begins = false
		}
	}
	return 3*len(data) + composites*perComposite + max(0, scalars)*perScalar
}

// CostOfYAML returns about how many bytes of memory a document of YAML takes until it is JSON. The parser refuses
// documents with more parts than some maxYAML has room for.
func CostOfYAML(data []byte) int { return min(len(data)*perYAML, maxYAML) + 3*len(data) }

const (
	// By measurement: of documents with a part in each second byte, and of those with as many parts as are accepted.
	perYAML = 100
	maxYAML = 24 << 20

	// perComposite is what an object or list of JSON takes: the mean of the types of messages, most of which are small.
	perComposite = 192
	// perScalar is what a text, number, true or false takes in free form (google.protobuf.Value), where a few bytes take
	// most. Keys are less.
	perScalar = 96
)
