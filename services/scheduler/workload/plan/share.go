package plan

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// share returns a number, or a percentage of total rounded up or down. What cannot be read is 0: the rules of the kinds
// keep it out.
func share(v *structpb.Value, total int, up bool) int {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return max(0, int(k.NumberValue))
	case *structpb.Value_StringValue:
		text, percent := strings.CutSuffix(k.StringValue, "%")
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0
		}
		if !percent {
			return n
		}
		product := n * total
		if up {
			product += 99
		}
		return product / 100
	}
	return 0
}

// percentage reports whether a value is a percentage.
func percentage(v *structpb.Value) bool { return strings.HasSuffix(v.GetStringValue(), "%") }

// inWords gives a number or percentage as its document has it.
func inWords(v *structpb.Value) string {
	if s := v.GetStringValue(); s != "" {
		return s
	}
	return strconv.Itoa(int(v.GetNumberValue()))
}
