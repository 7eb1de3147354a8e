package custom

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// Object is the message of an object.
type Object = apiextensionsv1.CustomObject

// versionSchema completes and checks the objects of one version of a kind. It is safe for concurrent use.
type versionSchema struct {
	structural *schema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator // nil if the schema has no x-kubernetes-validations
}

// newSchema compiles the schema of a version.
func newSchema(d *apiextensions.CustomResourceDefinition, version string) (*versionSchema, error) {
	props, err := apiextensions.GetSchemaForVersion(d, version)
	if err != nil {
		return nil, err
	}
	if props == nil || props.OpenAPIV3Schema == nil {
		return nil, fmt.Errorf("version %q has no schema", version)
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		return nil, fmt.Errorf("schema of version %q: %w", version, err)
	}
	if err := defaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("defaults of version %q: %w", version, err)
	}
	validator, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		return nil, fmt.Errorf("schema of version %q: %w", version, err)
	}
	return &versionSchema{structural, validator, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// own are the fields that an object has beside its content.
var own = []string{"apiVersion", "kind", "metadata", "status"}

// plain returns an object as the library has it.
func plain(o *Object) (map[string]any, error) {
	text, err := manifest.Encode(o)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal(text, &out) // whole numbers are integers, as the rules of a schema need them
}

// Complete removes the fields that the schema does not have from an object and sets defaults. It returns the paths of
// the fields that it removed, and why it can do neither.
func (s *versionSchema) Complete(o *Object) (removed []string, faults []object.Fault) {
	for _, name := range own {
		if _, given := o.GetContent().GetFields()[name]; given { // only gRPC can say so
			faults = append(faults, object.Fault{Path: name, Description: "must not be a part of the content"})
		}
	}
	if len(faults) > 0 {
		return nil, faults
	}
	fields, err := plain(o)
	if err != nil {
		return nil, []object.Fault{{Description: err.Error()}}
	}
	options := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	removed = pruning.PruneWithOptions(fields, s.structural, true, options)
	fault, further := objectmeta.CoerceWithOptions(nil, fields, s.structural, false, objectmeta.CoerceOptions{
		ReturnUnknownFieldPaths: true,
	})
	if fault != nil {
		return nil, faultsOf(field.ErrorList{fault})
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(fields, s.structural)
	defaulting.Default(fields, s.structural)
	if n := values(fields); n > maxValues {
		return nil, []object.Fault{object.Faultf("", "has %d values: may not have more than %d", n, maxValues)}
	}
	if err := fill(o, fields); err != nil {
		return nil, []object.Fault{{Description: err.Error()}}
	}
	return append(removed, further...), nil
}

// maxValues is how many fields and elements an object may have. The library compares each error that it finds with all
// others: 40000 wrong elements take half a minute on a slow host, and nothing interrupts it.
const maxValues = 10000

// values returns how many fields and elements a value has, and those have.
func values(v any) int {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			n += 1 + values(inner)
		}
	case []any:
		for _, inner := range v {
			n += 1 + values(inner)
		}
	}
	return n
}

// fill sets the content and the status of an object.
func fill(o *Object, fields map[string]any) error {
	content := maps.Clone(fields)
	maps.DeleteFunc(content, func(name string, _ any) bool { return slices.Contains(own, name) })
	var err error
	if o.Content, err = structOf(content); err != nil {
		return err
	}
	status, given := fields["status"].(map[string]any)
	if o.Status = nil; given {
		if o.Status, err = structpb.NewStruct(status); err != nil {
			return err
		}
	}
	return nil
}

// structOf returns fields as a message; nil if there are none.
func structOf(fields map[string]any) (*structpb.Struct, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	return structpb.NewStruct(fields)
}

// Faults returns what is wrong with an object by its schema. old is the object before a change, in the same version, or
// nil: rules that compare both states then are left out. Values that did not change are not faults. Source: the
// strategy of custom resources in Kubernetes' API server.
func (s *versionSchema) Faults(old, o *Object) []object.Fault {
	now, err := plain(o)
	if err != nil {
		return []object.Fault{{Description: err.Error()}}
	}
	ctx := context.Background()
	errs := objectmeta.Validate(ctx, nil, now, s.structural, false)
	var before any // an untyped nil for a creation, as the rules need it
	var ratchet []cel.Option
	if old == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, now, s.validator)...)
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, now)...)
	} else {
		fields, err := plain(old)
		if err != nil {
			return []object.Fault{{Description: err.Error()}}
		}
		both := common.NewCorrelatedObject(now, fields, &model.Structural{Structural: s.structural})
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, now, fields, s.validator,
			validation.WithRatcheting(both))...)
		if len(listtype.ValidateListSetsAndMaps(nil, s.structural, fields)) == 0 {
			errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, now)...)
		}
		before, ratchet = fields, append(ratchet, cel.WithRatcheting(both))
	}
	if s.rules != nil && len(errs) == 0 { // rules expect values of the types that the schema gives
		errs, _ = s.rules.Validate(ctx, nil, s.structural, now, before, celconfig.RuntimeCELCostBudget, ratchet...)
	}
	return faultsOf(errs)
}
