package manifest_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func decoded(t *testing.T, text string, m proto.Message) proto.Message {
	t.Helper()
	if err := manifest.Decode([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLookupAndFormat(t *testing.T) {
	machine := decoded(t, `{
		"metadata":{"name":"a","labels":{"a/b":"c","it's":"d","plain":"e"},"finalizers":["x","y"],"creationTimestamp":"2026-01-02T03:04:05Z"},
		"spec":{"providerID":"p","taints":[{"key":"k","effect":"NoSchedule"}],"lifecycleHooks":{"preDrain":[{"name":"Hook","owner":"me"}]},
			"providerSpec":{"value":{"disks":[{"name":"root","size":10},{"type":"data","size":2.5}],"7":true,"none":null}}},
		"status":{"phase":"","conditions":[{"type":"Drainable","status":"True"},{"type":"Drained","status":"False"}]}}`, new(machinev1.Machine))
	everything := decoded(t, `{"color":"COLOR_RED","someBytes":"AAE=","byInt32":{"5":"five"},"numberOrString":"50%","aDouble":1e21,"aFloat":0.1,
		"stringValue":"","span":"1.5s","maybeBool":false,"quantities":{"cpu":4,"memory":"8Gi"}}`, newMessages(t, "Everything")())
	for _, c := range []struct {
		m     proto.Message
		path  string
		found bool
		text  string
	}{
		{machine, "metadata.name", true, "a"},
		{machine, ".metadata.name", true, "a"},
		{machine, "metadata.labels['a/b']", true, "c"},
		{machine, `metadata.labels["a/b"]`, true, "c"},
		{machine, `metadata.labels['it\'s']`, true, "d"},
		{machine, "metadata.labels.plain", true, "e"},
		{machine, "metadata.labels", true, "a/b=c,it's=d,plain=e"},
		{machine, "metadata.finalizers", true, "x,y"},
		{machine, "metadata.finalizers[1]", true, "y"},
		{machine, "metadata.creationTimestamp", true, "2026-01-02T03:04:05Z"},
		{machine, "spec.taints[0].key", true, "k"},
		{machine, "spec.lifecycleHooks.preDrain[Hook].owner", true, "me"},
		{machine, "spec.lifecycleHooks.preDrain[0]", true, `{"name":"Hook","owner":"me"}`},
		{machine, "spec.providerSpec.value.disks[root].size", true, "10"},
		{machine, "spec.providerSpec.value.disks[data].size", true, "2.5"},
		{machine, "spec.providerSpec.value.disks", true, `{"name":"root","size":10},{"size":2.5,"type":"data"}`},
		{machine, "spec.providerSpec.value['7']", true, "true"},
		{machine, "spec.providerSpec.value[7]", true, "true"},
		{machine, "spec.providerSpec.value.none", true, ""},
		{machine, "status.phase", true, ""},
		{machine, "status.conditions[Drained].status", true, "False"},
		{everything, "color", true, "COLOR_RED"},
		{everything, "someBytes", true, "AAE="},
		{everything, "byInt32[5]", true, "five"},
		{everything, "numberOrString", true, "50%"},
		{everything, "aDouble", true, "1e+21"},
		{everything, "aFloat", true, "0.1"},
		{everything, "stringValue", true, ""},
		{everything, "span", true, "1.500s"},
		{everything, "maybeBool", true, "false"},
		{everything, "quantities", true, "cpu=4,memory=8Gi"},

		{machine, "metadata.namespace", false, ""},
		{machine, "metadata.labels.other", false, ""},
		{machine, "metadata.labels.a/b.c", false, ""},
		{machine, "metadata.finalizers[2]", false, ""},
		{machine, "metadata.finalizers[x]", false, ""},
		{machine, "metadata.finalizers.x", false, ""},
		{machine, "metadata.name.x", false, ""},
		{machine, "metadata[0]", false, ""},
		{machine, "spec.provider_id", false, ""},
		{machine, "spec.taints[1].key", false, ""},
		{machine, "status.conditions[Ready].status", false, ""},
		{machine, "spec.providerSpec.value.disks.x", false, ""},
		{machine, "spec.providerSpec.value.disks[swap]", false, ""},
		{machine, "spec.providerSpec.value.disks[9]", false, ""},
		{machine, "spec.providerSpec.value.none.x", false, ""},
		{machine, "no.such", false, ""},
		{machine, "metadata..name", false, ""},
		{machine, "metadata.labels['a", false, ""},
		{machine, "metadata.labels['']", false, ""},
		{machine, "metadata.finalizers[-1]", false, ""},
		{machine, "metadata.finalizers[]", false, ""},
		{nil, "a", false, ""},
	} {
		v, found := manifest.Lookup(c.m, c.path)
		if text := manifest.Format(v); found != c.found || found && text != c.text {
			t.Errorf("Lookup(%q) = %v, %t, formatted %q; want %t and %q", c.path, v, found, text, c.found, c.text)
		}
	}
}

func TestLookupGivesValuesOfGo(t *testing.T) {
	m := decoded(t, `{"anInt32":1,"time":"2026-01-02T03:04:05Z","free":{"a":[1]},"int32Value":5,"strings":["a"]}`,
		newMessages(t, "Everything")())
	if v, _ := manifest.Lookup(m, "anInt32"); v != int32(1) {
		t.Errorf("anInt32 is %T %v", v, v)
	}
	if v, _ := manifest.Lookup(m, "int32Value"); v != int32(5) {
		t.Errorf("int32Value is %T %v", v, v)
	}
	if v, _ := manifest.Lookup(m, "free.a[0]"); v != 1.0 {
		t.Errorf("free.a[0] is %T %v", v, v)
	}
	if v, ok := manifest.Lookup(&structpb.Struct{}, ""); !ok || len(v.(map[string]any)) != 0 {
		t.Errorf("an empty struct is %T %v", v, v)
	}
	machine := &machinev1.Machine{Status: &machinev1.MachineStatus{LastUpdated: &timestamppb.Timestamp{Seconds: 5}}}
	if v, _ := manifest.Lookup(machine, "status.lastUpdated"); v.(*timestamppb.Timestamp).GetSeconds() != 5 {
		t.Errorf("lastUpdated is %T %v", v, v)
	}
}

func TestProblemsAndLookupSpeakOfTheSamePaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringN(1, -1, -1).Draw(t, "key")
		labels := &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue("x")}}
		text,
			err := manifest.Encode(&machinev1.Machine{
			Spec: &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: labels}},
		})
		if err != nil {
			t.Fatal(err)
		}
		wrong := new(machinev1.ProviderSpec)
		err = manifest.Decode(
			append(append([]byte(`{"value":`), text[len(`{"spec":{"providerSpec":{"value":`):len(text)-len(`"x"}}}}`)]...),
				`9007199254740992}}`...), wrong)
		found, ok := err.(*manifest.Errors)
		if !ok || len(found.Problems) != 1 {
			t.Fatalf("problems: %v", err)
		}
		if v, ok := manifest.Lookup(&machinev1.ProviderSpec{Value: labels}, found.Problems[0].Path); !ok || v != "x" {
			t.Errorf("nothing at path %q", found.Problems[0].Path)
		}
	})
}

func TestLookupInDynamicMessages(t *testing.T) {
	typed := decoded(t, `{"value":{"a":{"b":[1,"x"]}}}`, new(machinev1.ProviderSpec))
	dynamic := decoded(t, `{"value":{"a":{"b":[1,"x"]}}}`, dynamicpb.NewMessage(typed.ProtoReflect().Descriptor()))
	if v, ok := manifest.Lookup(dynamic, "value.a.b[1]"); !ok || v != "x" {
		t.Errorf("value.a.b[1] = %v, %t", v, ok)
	}
}
