package custom

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
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
// the fields that it removed.
func (s *versionSchema) Complete(o *Object) (removed []string, err error) {
	fields, err := plain(o)
	if err != nil {
		return nil, err
	}
	options := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	removed = pruning.PruneWithOptions(fields, s.structural, true, options)
	fault, further := objectmeta.CoerceWithOptions(nil, fields, s.structural, false, objectmeta.CoerceOptions{
		ReturnUnknownFieldPaths: true,
	})
	if fault != nil {
		return nil, &faultsError{faultsOf(field.ErrorList{fault})}
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(fields, s.structural)
	defaulting.Default(fields, s.structural)
	if err := fill(o, fields); err != nil {
		return nil, err
	}
	return append(removed, further...), nil
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

// faultsError is what is wrong with an object.
type faultsError struct{ Faults []object.Fault }

func (e *faultsError) Error() string {
	texts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

// Faults returns what is wrong with an object by its schema. Rules that compare it with its former state are left out;
// see Transition.
func (s *versionSchema) Faults(o *Object) []object.Fault {
	fields, err := plain(o)
	if err != nil {
		return []object.Fault{{Description: err.Error()}}
	}
	ctx := context.Background()
	errs := validation.ValidateCustomResource(nil, fields, s.validator)
	errs = append(errs, objectmeta.Validate(ctx, nil, fields, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, fields)...)
	if s.rules != nil && len(errs) == 0 { // rules expect values of the types that the schema gives
		failed, _ := s.rules.Validate(ctx, nil, s.structural, fields, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, failed...)
	}
	return faultsOf(errs)
}

// Transition returns what is wrong with a change of an object by the rules of its schema that compare both states. old
// is in the same version. It is empty for an object with Faults.
func (s *versionSchema) Transition(old, o *Object) []object.Fault {
	if s.rules == nil || len(s.Faults(o)) > 0 {
		return nil
	}
	before, err := plain(old)
	now, alsoErr := plain(o)
	if err := errors.Join(err, alsoErr); err != nil {
		return []object.Fault{{Description: err.Error()}}
	}
	failed, _ := s.rules.Validate(context.Background(), nil, s.structural, now, before, celconfig.RuntimeCELCostBudget)
	return faultsOf(failed)
}
