package custom_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// repeated returns n texts in a list.
func repeated(n int, text func(i int) string) string {
	out := make([]string, n)
	for i := range out {
		out[i] = text(i)
	}
	return strings.Join(out, ", ")
}

// ruled returns a schema with one property, which has n equal rules, and as many others as given.
func ruled(n int, rule string, others int) string {
	fields := repeated(others, func(i int) string { return fmt.Sprintf(`, "p%d": {"type": "string"}`, i) })
	return `{"type": "object", "properties": {
		"s": {"type": "string", "maxLength": 3, "x-kubernetes-validations": [` +
		repeated(n, func(int) string { return `{"rule": "` + rule + `"}` }) + `]}` +
		strings.ReplaceAll(fields, ", ,", ",") + `}}`
}

// doubling is a rule whose types are twice as large with each step.
func doubling(steps int) string {
	rule := "[{1: 1}]"
	for i := range steps {
		rule += fmt.Sprintf(".map(v%d, {v%d: v%d})", i, i, i)
	}
	return rule + " == []"
}

func TestADefinitionThatIsTooCostlyToCompileIsRefusedWithTheField(t *testing.T) {
	const at = "spec.versions[0].schema.openAPIV3Schema"
	for name, test := range map[string]struct{ schema, path, text string }{
		"very many rules": {
			ruled(20000, "true", 0), at + ".properties[s].x-kubernetes-validations[", "rules",
		},
		"a rule whose type is large": {
			ruled(1, doubling(20), 0), at + ".properties[s].x-kubernetes-validations[0].rule", "rules",
		},
		"a rule that its macros make large": {
			ruled(1, "optional.of(1)"+strings.Repeat(".optMap(x, x)", 14)+".hasValue()", 0),
			at + ".properties[s].x-kubernetes-validations[0].rule", "rules",
		},
		"rules with lists inside each other": {
			ruled(500, strings.Repeat("[", 100)+"1"+strings.Repeat("]", 100)+" == []", 0),
			at + ".properties[s].x-kubernetes-validations[", "rules",
		},
		"a rule of many bytes": {
			ruled(1, strings.Repeat("true && ", 80000)+"true", 0),
			at + ".properties[s].x-kubernetes-validations[0].rule", "rules",
		},
		"many rules with a message that is evaluated": {
			`{"type": "object", "x-kubernetes-validations": [` + repeated(9000, func(int) string {
				return `{"rule": "true", "messageExpression": "'wrong'"}`
			}) + `]}`,
			at + ".x-kubernetes-validations[", "rules",
		},
		"rules that look up fields of a large schema": {
			`{"type": "object", "x-kubernetes-validations": [` + repeated(2000, func(int) string {
				return `{"rule": "true", "fieldPath": ".p1"}`
			}) + `], "properties": {` + repeated(5000, func(i int) string {
				return fmt.Sprintf(`"p%d": {"type": "string"}`, i)
			}) + `}}`,
			at + ".x-kubernetes-validations[", "rules",
		},
		"rules that each default compiles again": {
			`{"type": "object", "default": {}, "properties": {"a": {"type": "object", "default": {}, "properties": {"s": {
				"type": "string", "x-kubernetes-validations": [` + repeated(5000, func(int) string { return `{"rule": "true"}` }) +
				`]}}}}}`,
			at + ".properties[a].properties[s].x-kubernetes-validations[", "rules",
		},
		"a pattern of a large program": {
			`{"type": "object", "properties": {"s": {"type": "string", "pattern": "` + strings.Repeat(".{1000}", 200) + `"}}}`,
			at + ".properties[s].pattern", "instructions",
		},
		"a rule with such a pattern": {
			ruled(1, "self.matches('"+strings.Repeat(".{1000}", 200)+"')", 0),
			at + ".properties[s].x-kubernetes-validations[0].rule", "instructions",
		},
		"very many patterns": {
			`{"type": "object", "properties": {` + repeated(1001, func(i int) string {
				return fmt.Sprintf(`"p%04d": {"type": "string", "pattern": "%d"}`, i, i)
			}) + `}}`,
			at + ".properties[p1000].pattern", "1000 patterns",
		},
		"a large default with faults": {
			`{"type": "object", "properties": {"s": {"type": "array", "items": {"type": "string"}, "default": [` +
				repeated(20000, func(int) string { return "1" }) + `]}}}`,
			at + ".properties[s].default", "defaults",
		},
	} {
		t.Run(name, func(t *testing.T) {
			faults := custom.Faults(definition(t, test.schema))
			if len(faults) != 1 || !strings.HasPrefix(faults[0].Path, test.path) ||
				!strings.Contains(faults[0].Description, test.text) {
				t.Errorf("%v; want %s", faults, test.path)
			}
		})
	}
}

// A definition that is sent by gRPC has no limit of its nesting before.
func TestASchemaThatIsNestedTooDeeplyIsRefused(t *testing.T) {
	for levels, refused := range map[int]bool{15: false, 500: true} {
		d := definition(t, schema)
		inner := &structpb.Struct{Fields: map[string]*structpb.Value{"type": structpb.NewStringValue("object")}}
		for range levels - 1 {
			inner = &structpb.Struct{Fields: map[string]*structpb.Value{
				"type": structpb.NewStringValue("object"), "properties": structpb.NewStructValue(&structpb.Struct{
					Fields: map[string]*structpb.Value{"a": structpb.NewStructValue(inner)},
				}),
			}}
		}
		d.Spec.Versions[0].Schema.OpenApiv3Schema = inner
		faults := custom.Faults(d)
		if (len(faults) > 0) != refused || refused && faults[0].Path != "spec.versions[0].schema.openAPIV3Schema" {
			t.Errorf("%d levels: %v", levels, faults)
		}
	}
}

// The path that the library gives is that of an earlier form of definitions.
func TestAFaultInTheOnlyVersionHasItsPath(t *testing.T) {
	faults := custom.Faults(definition(t, `{"type": "object", "properties": {"s": {"type": "text"}}}`))
	const want = "spec.versions[0].schema.openAPIV3Schema.properties[s].type"
	if len(faults) != 1 || faults[0].Path != want {
		t.Errorf("%v; want %s", faults, want)
	}
}

// costly are definitions of about 1 MiB that are just accepted, each with another cost.
func costly(t testing.TB) map[string]*custom.Definition {
	t.Helper()
	return map[string]*custom.Definition{
		"fields":      definition(t, ruled(0, "", 30000)),
		"rules":       definition(t, ruled(10000, "true", 20000)),
		"large rules": definition(t, ruled(700, "true"+strings.Repeat(" && true", 85), 15000)),
		"lists":       definition(t, ruled(29, strings.Repeat("[", 100)+"1"+strings.Repeat("]", 100)+" == []", 27000)),
		"maps":        definition(t, ruled(2, doubling(8), 27000)),
		"patterns": definition(t, `{"type": "object", "properties": {`+repeated(1000, func(i int) string {
			return fmt.Sprintf(`"p%d": {"type": "string", "pattern": "^p%d.{50}$"}`, i, i)
		})+`}}`),
		"schemas with rules": definition(t, `{"type": "object", "properties": {`+repeated(2100, func(i int) string {
			return fmt.Sprintf(`"p%d": {"type": "string", "x-kubernetes-validations": [{"rule": "true"}]}`, i)
		})+`}}`),
		"default": definition(t, `{"type": "object", "properties": {"s": {"type": "array", "items": {"type": "integer"}, `+
			`"default": [`+repeated(2400, func(int) string { return "1" })+`]}}}`),
	}
}

// BenchmarkTheCostliestDefinitions shows how long a request can keep a core busy.
func BenchmarkTheCostliestDefinitions(b *testing.B) {
	for name, d := range costly(b) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if faults := custom.Faults(d); len(faults) > 0 {
					b.Fatal(faults)
				}
			}
		})
	}
}

func TestAChangeOfTheStatusIsNotComparedByTheLibrary(t *testing.T) {
	old := definition(t, ruled(100, "true", 100))
	d := proto.CloneOf(old)
	d.Status.Conditions = []*metav1.Condition{{Type: plan.Established, Status: plan.True}}
	if n := testing.AllocsPerRun(1, func() { custom.UpdateFaults(old, d) }); n > 10000 {
		t.Errorf("%v allocations", n)
	}
}
