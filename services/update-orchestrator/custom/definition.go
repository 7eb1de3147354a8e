// Package custom serves the objects of the kinds that CustomResourceDefinitions define. It checks definitions and
// objects with the library that Kubernetes' API server uses, and keeps one table for each kind, with the cache, watches
// and standard methods that all kinds have. What a definition's status says is decided elsewhere.
package custom

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	k8sv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	// The groups that Windlass serves are found among what the program is linked with.
	_ "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Finalizer keeps a definition until the objects of its kind are deleted, as in Kubernetes.
const Finalizer = "customresourcecleanup.apiextensions.k8s.io"

// Definition is the message of a definition.
type Definition = apiextensionsv1.CustomResourceDefinition

// Served reports whether Windlass itself has kinds or rights of a group, so that no definition may have it.
func Served(group string) bool {
	served := false
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			t := object.TypeOf(f.Messages().Get(i))
			served = served || t != nil && t.GetGroup() == group
		}
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				access, _ := proto.GetExtension(methods.Get(j).Options(), metav1.E_Access).(*metav1.Access)
				served = served || access.GetGroup() == group && !access.GetOfRequest()
			}
		}
		return !served
	})
	return served
}

// Default sets what a definition leaves out, as Kubernetes does, and adds its storage version to the versions that
// objects were ever stored in: that is in the same write, since objects are stored in it right after.
func Default(d *Definition) {
	names := d.GetSpec().GetNames()
	if names.GetKind() != "" {
		if names.GetSingular() == "" {
			names.Singular = strings.ToLower(names.GetKind())
		}
		if names.GetListKind() == "" {
			names.ListKind = names.GetKind() + "List"
		}
	}
	if d.GetSpec() != nil && d.GetSpec().GetConversion().GetStrategy() == "" {
		if d.Spec.Conversion == nil {
			d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{}
		}
		d.Spec.Conversion.Strategy = "None"
	}
	if d.Status == nil {
		d.Status = &apiextensionsv1.CustomResourceDefinitionStatus{}
	}
	if v := storageVersion(d); v != "" && !slices.Contains(d.Status.StoredVersions, v) {
		d.Status.StoredVersions = append(d.Status.StoredVersions, v)
	}
}

// storageVersion returns the version that objects are stored in; empty if the definition has none.
func storageVersion(d *Definition) string {
	for _, v := range d.GetSpec().GetVersions() {
		if v.GetStorage() {
			return v.GetName()
		}
	}
	return ""
}

// Faults returns what is wrong with a definition: what Kubernetes refuses, and what is not in force here.
func Faults(d *Definition) []object.Fault {
	faults := unserved(d)
	in, err := internal(d)
	if err != nil {
		return append(faults, object.Fault{Path: "spec", Description: err.Error()})
	}
	if excess := excesses(d, in); len(excess) > 0 {
		return append(faults, excess...)
	}
	return append(faults, located(d, validation.ValidateCustomResourceDefinition(context.Background(), in))...)
}

// unserved returns the fields that ask for what this service does not do.
func unserved(d *Definition) (faults []object.Fault) {
	if group := d.GetSpec().GetGroup(); Served(group) {
		faults = append(faults, object.Faultf("spec.group", "is %q, a group that Windlass itself serves", group))
	}
	if d.GetSpec().GetConversion().GetStrategy() == "Webhook" {
		faults = append(faults, object.Fault{
			Path:        "spec.conversion.strategy",
			Description: `"Webhook" is not in force: objects are converted by the strategy "None" only`,
		})
	}
	status := d.GetSpec().GetVersions()[0].GetSubresources().GetStatus() != nil
	for i, v := range d.GetSpec().GetVersions() {
		at := fmt.Sprintf("spec.versions[%d].subresources", i)
		if v.GetSubresources().GetScale() != nil {
			faults = append(faults, object.Fault{Path: at + ".scale", Description: "is not in force: the subresource scale is " +
				"not served"})
		}
		if (v.GetSubresources().GetStatus() != nil) != status {
			faults = append(faults,
				object.Fault{Path: at + ".status", Description: "must be given for all versions or for none"})
		}
	}
	return faults
}

// UpdateFaults returns what is wrong with a change of a definition, without the Faults of the new one.
func UpdateFaults(old, d *Definition) []object.Fault {
	if proto.Equal(old.GetSpec(), d.GetSpec()) &&
		slices.Equal(old.GetStatus().GetStoredVersions(), d.GetStatus().GetStoredVersions()) {
		return nil // the library compares nothing else, and takes long
	}
	before, err := internal(old)
	if err != nil {
		return nil // a definition that an older version accepted may be replaced by any that has no fault
	}
	in, err := internal(d)
	if err != nil || len(excesses(d, in)) > 0 {
		return nil // Faults has it
	}
	var faults []object.Fault
	for _, f := range []struct{ path, was, is string }{
		{"spec.scope", old.GetSpec().GetScope(), d.GetSpec().GetScope()},
		{"spec.names.kind", old.GetSpec().GetNames().GetKind(), d.GetSpec().GetNames().GetKind()},
	} {
		if f.was != f.is {
			faults = append(faults, object.Faultf(f.path, "cannot be changed from %q to %q", f.was, f.is))
		}
	}
	alone := located(d, validation.ValidateCustomResourceDefinition(context.Background(), in))
	for _, f := range located(d, validation.ValidateCustomResourceDefinitionUpdate(context.Background(), in, before)) {
		known := func(o object.Fault) bool { return o.Path == f.Path }
		if !slices.ContainsFunc(alone, known) && !slices.ContainsFunc(faults, known) {
			faults = append(faults, f)
		}
	}
	return faults
}

// internal returns a definition as the library has it, with its defaults.
func internal(d *Definition) (*apiextensions.CustomResourceDefinition, error) {
	text, err := manifest.Encode(d)
	if err != nil {
		return nil, err
	}
	external := &k8sv1.CustomResourceDefinition{}
	if err := json.Unmarshal(text, external); err != nil {
		return nil, err
	}
	if external.Spec.Conversion != nil && external.Spec.Conversion.Strategy == k8sv1.WebhookConverter {
		external.Spec.Conversion = nil // refused elsewhere, with a better text than that of its missing parts
	}
	k8sv1.SetDefaults_CustomResourceDefinition(external)
	k8sv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
	out := &apiextensions.CustomResourceDefinition{}
	return out, k8sv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(external, out, nil)
}

// located returns the errors of the library about a definition as faults. It has what is of a single version elsewhere.
func located(d *Definition, errs field.ErrorList) []object.Fault {
	faults := faultsOf(errs)
	if len(d.GetSpec().GetVersions()) > 1 {
		return faults
	}
	for i, f := range faults {
		for from, to := range map[string]string{
			"validation": "schema", "subresources": "subresources", "additionalPrinterColumns": "additionalPrinterColumns",
			"selectableFields": "selectableFields",
		} {
			if rest, ok := strings.CutPrefix(f.Path, "spec."+from); ok {
				faults[i].Path = "spec.versions[0]." + to + rest
			}
		}
	}
	return faults
}

// most is how many faults or warnings one answer has: each element of a long list may lead to one.
const most = 50

// faultsOf returns the errors of the library as faults, the first ones if there are many.
func faultsOf(errs field.ErrorList) []object.Fault {
	var faults []object.Fault
	for i, e := range errs {
		if len(faults) == most {
			return append(faults, object.Faultf("", "has up to %d more faults", len(errs)-i))
		}
		path := e.Field
		if path == "<nil>" {
			path = ""
		}
		f := object.Fault{Path: path, Description: e.ErrorBody()}
		if !slices.Contains(faults, f) {
			faults = append(faults, f)
		}
	}
	return faults
}
