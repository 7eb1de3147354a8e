package custom

import (
	"cmp"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/parser"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of all schemas of a definition together. The library limits how long the evaluation of rules takes, but not
// their compilation, which nothing interrupts: a rule of 600 bytes can take days. A large definition, such as that of
// the HTTPRoutes of the Gateway API with 146 rules and 78 patterns, has a tenth of each or less.
const (
	maxNesting     = 30      // objects and lists inside each other in a schema, as in manifests
	maxRuleCost    = 1 << 19 // of the compilation of rules; up to 10 µs each on a slow host
	maxPatternCost = 1 << 17 // instructions of regular expressions; 40 bytes each, which the library never frees
	maxPatterns    = 1000    // the library copies its table of all patterns for each new one
	maxDefaults    = 5000    // values in defaults: as for maxValues, the library compares all errors with each other
)

// What the compilation of rules costs. The unit is a byte of a simple expression.
const (
	nodeCost       = 200 // of a schema that has rules
	expressionCost = 40  // of a rule or a messageExpression, beside its bytes
	valuesPerCost  = 2   // of the schema that a rule with a fieldPath, or the first rule, reads
	typesPerFactor = 128 // squared, see factor
	mostDoublings  = 20  // any more are refused in any case
)

// bill is what the compilation of the schemas of a definition costs.
type bill struct {
	parser    *parser.Parser
	rules     int
	patterns  int
	programs  int // of patterns
	defaults  int
	overdrawn []object.Fault // the first one of each kind
}

// excesses returns why the schemas of a definition are not even compiled, with the fields at which they exceed a limit.
// in is the same definition as the library has it.
func excesses(d *Definition, in *apiextensions.CustomResourceDefinition) []object.Fault {
	if faults := deep(d); len(faults) > 0 {
		return faults
	}
	// Macros are left out, since their expansion may be what is costly.
	p, err := parser.NewParser(parser.Macros(), parser.EnableOptionalSyntax(true))
	if err != nil {
		return []object.Fault{{Description: err.Error()}}
	}
	b := &bill{parser: p}
	for i, v := range in.Spec.Versions {
		s, err := apiextensions.GetSchemaForVersion(in, v.Name)
		if err != nil || s == nil || s.OpenAPIV3Schema == nil {
			continue // Faults has it
		}
		b.schema(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), s.OpenAPIV3Schema, 1)
	}
	return b.overdrawn
}

// deep returns the schemas of a definition that have too many objects and lists inside each other.
func deep(d *Definition) (faults []object.Fault) {
	for i, v := range d.GetSpec().GetVersions() {
		if nests(structpb.NewStructValue(v.GetSchema().GetOpenApiv3Schema()), maxNesting) {
			faults = append(faults, object.Faultf(fmt.Sprintf("spec.versions[%d].schema.openAPIV3Schema", i),
				"may not have more than %d objects and lists inside each other", maxNesting))
		}
	}
	return faults
}

// nests reports whether a value has more than some objects and lists inside each other.
func nests(v *structpb.Value, most int) bool {
	if most < 0 {
		return true
	}
	deeper := func(v *structpb.Value) bool { return nests(v, most-1) }
	for _, v := range v.GetStructValue().GetFields() {
		if deeper(v) {
			return true
		}
	}
	return slices.ContainsFunc(v.GetListValue().GetValues(), deeper)
}

// exceeds notes that a field takes what was counted above a limit.
func (b *bill) exceeds(counted, limit int, at *field.Path, what string) {
	if counted > limit && !slices.ContainsFunc(b.overdrawn, func(f object.Fault) bool { return f.Description == what }) {
		b.overdrawn = append(b.overdrawn, object.Fault{Path: at.String(), Description: what})
	}
}

// schema adds a schema, which is compiled as often as times: once, and again for each schema around it that has a
// default. It returns how many values it has.
func (b *bill) schema(at *field.Path, s *apiextensions.JSONSchemaProps, times int) (size int) {
	if s == nil {
		return 0
	}
	if s.Default != nil {
		times++
		b.defaults += times * values([]any{*s.Default})
		b.exceeds(b.defaults, maxDefaults, at.Child("default"),
			fmt.Sprintf("the defaults of the definition may not have more than %d values", maxDefaults))
	}
	if s.Pattern != "" {
		b.pattern(at.Child("pattern"), s.Pattern, times)
	}
	size = 1 + len(s.Enum) + len(s.Required)
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		sub := s.Properties[key]
		size += b.schema(at.Child("properties").Key(key), &sub, times)
	}
	for i, list := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for j := range list {
			size += b.schema(at.Child([]string{"allOf", "anyOf", "oneOf"}[i]).Index(j), &list[j], times)
		}
	}
	size += b.schema(at.Child("not"), s.Not, times)
	if s.Items != nil {
		size += b.schema(at.Child("items"), s.Items.Schema, times)
	}
	if s.AdditionalProperties != nil {
		size += b.schema(at.Child("additionalProperties"), s.AdditionalProperties.Schema, times)
	}
	if len(s.XValidations) > 0 {
		b.rules += times * (nodeCost + size/valuesPerCost)
	}
	for i, rule := range s.XValidations {
		b.rule(at.Child("x-kubernetes-validations").Index(i), rule, size, times)
	}
	return size
}

// rule adds a rule of a schema of some size.
func (b *bill) rule(at *field.Path, rule apiextensions.ValidationRule, size, times int) {
	if rule.FieldPath != "" {
		b.rules += times * size / valuesPerCost
	}
	b.expression(at.Child("rule"), rule.Rule, times)
	b.expression(at.Child("messageExpression"), rule.MessageExpression, times)
}

// expression adds an expression.
func (b *bill) expression(at *field.Path, text string, times int) {
	if text == "" {
		return
	}
	b.rules += times * (expressionCost + len(text))
	if b.rules <= maxRuleCost { // a longer one is not even parsed
		b.rules += times * len(text) * (b.factor(at, text, times) - 1)
	}
	b.exceeds(b.rules, maxRuleCost, at,
		fmt.Sprintf("the rules of the definition are too costly to compile: may not cost more than %d", maxRuleCost))
}

// factor returns how much more the compilation of an expression costs than its length says, and adds the patterns among
// its texts. The type of a map has those of its keys and of its values, and some macros repeat what they are called of:
// each of these may double the cost. Types inside each other cost about the square of their number. What is no
// expression is refused by the library.
func (b *bill) factor(at *field.Path, text string, times int) int {
	parsed, errs := b.parser.Parse(common.NewTextSource(text))
	if errs != nil && len(errs.GetErrors()) > 0 {
		return 1
	}
	doublings, types := 0, 0
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ListKind:
			types++
		case ast.MapKind:
			types++
			doublings += min(e.AsMap().Size(), 1)
		case ast.CallKind:
			switch e.AsCall().FunctionName() {
			case "optMap", "optFlatMap":
				types++
				doublings += 2 // a little less
			case "of", "ofNonZeroValue", "map", "transformList", "transformMap", "transformMapEntry":
				types++
			}
		case ast.LiteralKind:
			if text, ok := e.AsLiteral().Value().(string); ok {
				b.program(at, text, times)
			}
		}
	}))
	return min(1+types*types/typesPerFactor, maxRuleCost) << min(doublings, mostDoublings)
}

func (b *bill) pattern(at *field.Path, text string, times int) {
	b.patterns++
	b.exceeds(b.patterns, maxPatterns, at, fmt.Sprintf("the definition may not have more than %d patterns", maxPatterns))
	b.program(at, text, times)
}

// program adds the program of what may be a regular expression.
func (b *bill) program(at *field.Path, text string, times int) {
	b.programs += times * instructions(text)
	b.exceeds(b.programs, maxPatternCost, at, fmt.Sprintf(
		"the regular expressions of the definition may not have more than %d instructions", maxPatternCost))
}

// instructions returns about how many instructions the program of a regular expression has; 0 for what is none.
func instructions(text string) int {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0
	}
	return size(re)
}

func size(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += size(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= cmp.Or(max(re.Min, re.Max), 1)
	}
	return n
}
