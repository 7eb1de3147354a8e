package failure

import (
	"fmt"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

func TestFieldsOfAnErrorArePrintedOnce(t *testing.T) {
	var many []object.Fault
	for i := range 12 {
		many = append(many, object.Fault{Path: fmt.Sprintf("spec.f%02d", i), Description: "is wrong"})
	}
	for name, c := range map[string]struct {
		fields []object.Fault
		want   string
	}{
		"one": {many[:1], "from server (Invalid): spec.f00: is wrong"},
		"two": {
			many[:2], "from server (Invalid): 2 fields are invalid:\n* spec.f00: is wrong\n* spec.f01: is wrong",
		},
		"one found twice": {[]object.Fault{many[0], many[0]}, "from server (Invalid): spec.f00: is wrong"},
		"one and the whole": {
			[]object.Fault{many[0], {Description: "too much"}},
			"from server (Invalid): 2 fields are invalid:\n* spec.f00: is wrong\n* too much",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Describe(rpcerr.Invalid(c.fields...)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	text := Describe(rpcerr.Invalid(many...))
	for _, f := range many {
		if n := strings.Count(text, f.Path); n != 1 {
			t.Errorf("%s is printed %d times in\n%s", f.Path, n, text)
		}
	}
}
