package plan

import (
	"hash/fnv"
	"strconv"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
)

// templateHash returns ten characters or fewer that represent a template: a label value and part of a name, of letters
// that spell no words. collisions distinguishes templates that would get the same.
func templateHash(template *schedulingv1.PodTemplateSpec, collisions int32) string {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(template)
	if err != nil {
		raw = nil // only text that is not UTF-8 does this, which no document can hold
	}
	h := fnv.New32a()
	_, _ = h.Write(raw) // it never fails
	if collisions > 0 {
		_, _ = h.Write([]byte(strconv.Itoa(int(collisions))))
	}
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	digits := []byte(strconv.FormatUint(uint64(h.Sum32()), 10))
	for i, d := range digits {
		digits[i] = letters[d%byte(len(letters))]
	}
	return string(digits)
}
