// Package platform checks the provider specs of the platforms in OpenShift's documents: AWS, Azure and vSphere. It
// refuses what OpenShift's machine API refuses, asks no cloud, and leaves to the providers what only they know, such as
// which instance types exist. It does no I/O.
//
// The fields, their types and the values they may have are those of OpenShift's API (github.com/openshift/api,
// machine/v1beta1), the rules those of its admission (github.com/openshift/machine-api-operator, pkg/webhooks). No text
// of either was copied.
package platform

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/object"
)

// documentsGroup is the end of the API groups of the provider specs in OpenShift's documents, such as
// machine.openshift.io.
const documentsGroup = "openshift.io"

// Documented reports whether a provider spec is of a kind of OpenShift's documents, known to this package or not.
func Documented(spec *structpb.Struct) bool {
	group, _, _ := strings.Cut(spec.GetFields()["apiVersion"].GetStringValue(), "/")
	_, known := schemaOf(spec)
	return known || strings.HasSuffix(group, documentsGroup)
}

// Verdict is what is wrong with a provider spec. Paths begin at the spec. The zero Verdict means that nothing is.
type Verdict struct {
	Faults   []object.Fault // values that the platform refuses
	Missing  []object.Fault // fields that must be given before a machine can be created
	Warnings []string       // what is ignored, or may not work; each begins with its path
}

// Refused returns the faults of an object that is to be stored: values that are refused and fields that are missing, by
// path.
func (v Verdict) Refused() []object.Fault {
	all := slices.Concat(v.Faults, v.Missing)
	slices.SortStableFunc(all, func(a, b object.Fault) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// Check checks a provider spec of AWS, Azure or vSphere. The verdict on any other one is empty. What OpenShift takes
// from the cluster where it is not given, such as the region of AWS, is not missing; a warning says so.
func Check(spec *structpb.Struct) Verdict {
	known, ok := schemaOf(spec)
	if !ok {
		return Verdict{}
	}
	r := &report{}
	root := at{v: structpb.NewStructValue(spec)}
	r.apiVersion(root.in("apiVersion"), known.group)
	r.check(root, known.spec)
	return r.Verdict
}

// platformSpec is the provider spec of a platform.
type platformSpec struct {
	group string // its former API group, still in use
	spec  schema
}

func schemaOf(spec *structpb.Struct) (platformSpec, bool) {
	group, _, _ := strings.Cut(spec.GetFields()["apiVersion"].GetStringValue(), "/")
	if group != "" && !strings.HasSuffix(group, documentsGroup) {
		return platformSpec{}, false
	}
	switch spec.GetFields()["kind"].GetStringValue() {
	case "AWSMachineProviderConfig":
		return platformSpec{"awsproviderconfig.openshift.io", aws()}, true
	case "AzureMachineProviderSpec":
		return platformSpec{"azureproviderconfig.openshift.io", azure()}, true
	case "VSphereMachineProviderSpec":
		return platformSpec{"vsphereprovider.openshift.io", vsphere()}, true
	}
	return platformSpec{}, false
}

func (r *report) apiVersion(a at, formerGroup string) {
	for _, group := range []string{"machine.openshift.io", formerGroup} {
		if a.text() == group+"/v1beta1" || a.text() == group+"/v1" {
			return
		}
	}
	r.warn(a, "is %q, expected machine.openshift.io/v1beta1", a.text())
}

// embedded returns fields together with those that every provider spec has.
func embedded(fields map[string]schema) map[string]schema {
	fields["apiVersion"], fields["kind"] = schema{}, schema{}
	fields["metadata"] = schema{form: anything}
	return fields
}

// secret is a reference to a Secret. OpenShift refers to its own where none is given.
func secret(extra ...string) schema {
	fields := map[string]schema{"name": {}}
	for _, f := range extra {
		fields[f] = schema{}
	}
	return fieldsOf(fields)
}

const defaultedByOpenShift = "is not given; OpenShift would set it, Windlass leaves it to the provider"

// defaulted warns of fields that OpenShift takes from the cluster's own settings where they are not given.
func (r *report) defaulted(a at, names ...string) {
	for _, name := range names {
		if f := a.in(name); !f.given() {
			r.warn(f, defaultedByOpenShift)
		}
	}
}

// exclusive refuses a structure that has more than one of some fields.
func (r *report) exclusive(a at, names ...string) {
	var have []string
	for _, name := range names {
		if a.in(name).given() {
			have = append(have, name)
		}
	}
	if len(have) > 1 {
		r.fault(a, "has %s, only one of %s is allowed", strings.Join(have, " and "), strings.Join(names, ", "))
	}
}

// unique refuses items of a list that have the value of an earlier one in a field.
func (r *report) unique(a at, field string) {
	first := map[string]int{}
	for i, item := range a.items() {
		value := fmt.Sprint(item.in(field).v.AsInterface())
		if j, ok := first[value]; ok && item.in(field).given() {
			r.fault(item.in(field), "is %s, as in %s[%d]", value, a.path, j)
			continue
		}
		first[value] = i
	}
}
