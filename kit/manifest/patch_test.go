package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// samePatched compares JSON as messages of type m.
func samePatched(t *testing.T, m proto.Message, got []byte, want string) {
	t.Helper()
	a, b := m.ProtoReflect().New().Interface(), m.ProtoReflect().New().Interface()
	if err := manifest.Decode(got, a); err != nil {
		t.Fatalf("result %s: %v", got, err)
	}
	if err := manifest.Decode([]byte(want), b); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(a, b) {
		t.Errorf("result %s, want %s", got, want)
	}
}

func TestPatchOfEachType(t *testing.T) {
	const original = `{"metadata":{"name":"a","labels":{"a":"1","b":"2"},"finalizers":["x"]},"spec":{"providerID":"p","providerSpec":{"value":{"size":[1,2],"big":9007199254740991}}}}`
	for name, c := range map[string]struct{ media, patch, want string }{
		"JSON patch": {
			manifest.JSONPatch,
			`[{"op":"test","path":"/metadata/labels/a","value":"1"},{"op":"replace","path":"/spec/providerID","value":"q"},{"op":"add","path":"/metadata/finalizers/-","value":"<y>"},{"op":"remove","path":"/metadata/labels/b"}]`,
			`{"metadata":{"name":"a","labels":{"a":"1"},"finalizers":["x","<y>"]},"spec":{"providerID":"q","providerSpec":{"value":{"size":[1,2],"big":9007199254740991}}}}`,
		},
		"merge patch with a parameter": {
			manifest.MergePatch + "; charset=utf-8",
			`{"metadata":{"labels":{"b":null,"c":"3"},"finalizers":["y"]},"spec":{"providerSpec":{"value":{"size":null}}}}`,
			`{"metadata":{"name":"a","labels":{"a":"1","c":"3"},"finalizers":["y"]},"spec":{"providerID":"p","providerSpec":{"value":{"big":9007199254740991}}}}`,
		},
		"strategic merge": {
			manifest.StrategicPatch,
			`{"metadata":{"labels":{"b":null,"c":"3"},"finalizers":["y"]},"spec":{"providerID":null,"providerSpec":{"value":{"size":[3]}}}}`,
			`{"metadata":{"name":"a","labels":{"a":"1","c":"3"},"finalizers":["y","x"]},"spec":{"providerSpec":{"value":{"size":[3],"big":9007199254740991}}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := manifest.Patch([]byte(original), c.media, []byte(c.patch),
				new(machinev1.Machine).ProtoReflect().Descriptor())
			if err != nil {
				t.Fatal(err)
			}
			samePatched(t, new(machinev1.Machine), got, c.want)
		})
	}
}

func TestStrategicMergeKnowsTheListsOfKubernetes(t *testing.T) {
	pod := newMessages(t, "Pod")()
	for name, c := range map[string]struct {
		m                     proto.Message
		original, patch, want string
	}{
		"hooks by name": {
			new(machinev1.Machine),
			`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"one","owner":"a"},{"name":"two","owner":"b"}]}}}`,
			`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"two","$patch":"delete"},{"name":"new","owner":"c"}],"preTerminate":[{"name":"last","owner":"d"}]}}}`,
			`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"new","owner":"c"},{"name":"one","owner":"a"}],"preTerminate":[{"name":"last","owner":"d"}]}}}`,
		},
		"conditions by type": {
			new(machinev1.Machine),
			`{"status":{"conditions":[{"type":"A","status":"True"},{"type":"B","status":"True","reason":"R"}]}}`,
			`{"status":{"conditions":[{"type":"B","status":"False"}]}}`,
			`{"status":{"conditions":[{"type":"A","status":"True"},{"type":"B","status":"False","reason":"R"}]}}`,
		},
		"taints are replaced": {
			new(nodev1.Node),
			`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"},{"key":"b","effect":"NoExecute"}]}}`,
			`{"spec":{"taints":[{"key":"b","effect":"NoSchedule"}]}}`,
			`{"spec":{"taints":[{"key":"b","effect":"NoSchedule"}]}}`,
		},
		"addresses by type": {
			new(nodev1.Node),
			`{"status":{"addresses":[{"type":"Hostname","address":"a"},{"type":"InternalIP","address":"127.0.0.1"}]}}`,
			`{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.2"}]}}`,
			`{"status":{"addresses":[{"type":"Hostname","address":"a"},{"type":"InternalIP","address":"127.0.0.2"}]}}`,
		},
		"owners by uid": {
			new(nodev1.Node),
			`{"metadata":{"ownerReferences":[{"uid":"1","name":"a"}]}}`,
			`{"metadata":{"ownerReferences":[{"uid":"2","name":"b"}]}}`,
			`{"metadata":{"ownerReferences":[{"uid":"2","name":"b"},{"uid":"1","name":"a"}]}}`,
		},
		"uncordon by null": {
			new(nodev1.Node), `{"spec":{"unschedulable":true,"providerID":"x"}}`, `{"spec":{"unschedulable":null}}`,
			`{"spec":{"providerID":"x"}}`,
		},
		"null of what is not there": {
			new(nodev1.Node), `{}`, `{"spec":{"unschedulable":null},"metadata":{"labels":{"a":null}}}`,
			`{"spec":{},"metadata":{}}`,
		},
		"finalizers removed by directive": {
			new(nodev1.Node), `{"metadata":{"finalizers":["x","y"]}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["x"]}}`, `{"metadata":{"finalizers":["y"]}}`,
		},
		"containers, env, ports and mounts": {
			pod,
			`{"spec":{"containers":[{"name":"a","image":"1","env":[{"name":"E","value":"1"}],"ports":[{"containerPort":1}],"volumeMounts":[{"mountPath":"/a","name":"x"}]},{"name":"b"}]}}`,
			`{"spec":{"$setElementOrder/containers":[{"name":"a"},{"name":"b"}],"containers":[{"name":"a","image":"2","env":[{"name":"F","value":"2"}],"ports":[{"containerPort":1,"protocol":"UDP"}],"volumeMounts":[{"mountPath":"/a","name":"y"}]}]}}`,
			`{"spec":{"containers":[{"name":"a","image":"2","env":[{"name":"F","value":"2"},{"name":"E","value":"1"}],"ports":[{"containerPort":1,"protocol":"UDP"}],"volumeMounts":[{"mountPath":"/a","name":"y"}]},{"name":"b"}]}}`,
		},
		"tolerations, arguments and free form as a whole": {
			pod,
			`{"spec":{"tolerations":[{"key":"a"}],"args":["a"],"extra":{"containers":[{"name":"a"}],"o":{"p":1}}}}`,
			`{"spec":{"tolerations":[{"key":"b"}],"args":["b"],"extra":{"containers":[{"name":"b"}],"o":{"q":1}}}}`,
			`{"spec":{"tolerations":[{"key":"b"}],"args":["b"],"extra":{"containers":[{"name":"b"}],"o":{"p":1,"q":1}}}}`,
		},
		"messages in a map": {
			pod,
			`{"spec":{"byName":{"x":{"name":"a","env":[{"name":"E","value":"1"}]}}}}`,
			`{"spec":{"byName":{"x":{"env":[{"name":"E","value":"2"}]},"y":{"name":"b"}}}}`,
			`{"spec":{"byName":{"x":{"name":"a","env":[{"name":"E","value":"2"}]},"y":{"name":"b"}}}}`,
		},
		"one source of a volume for another": {
			pod,
			`{"spec":{"volumes":[{"name":"v","emptyDir":{}}]}}`,
			`{"spec":{"volumes":[{"name":"v","$retainKeys":["name","hostPath"],"hostPath":{"path":"/x"}}]}}`,
			`{"spec":{"volumes":[{"name":"v","hostPath":{"path":"/x"}}]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := manifest.Patch([]byte(c.original), manifest.StrategicPatch, []byte(c.patch),
				c.m.ProtoReflect().Descriptor())
			if err != nil {
				t.Fatal(err)
			}
			samePatched(t, c.m, got, c.want)
		})
	}
}

func TestPatchLeavesUnknownFieldsToDecode(t *testing.T) {
	for _, media := range []string{manifest.MergePatch, manifest.StrategicPatch} {
		got, err := manifest.Patch([]byte(`{"spec":{}}`), media, []byte(`{"spec":{"a":{"b":1},"c":[{"d":1}]}}`),
			new(nodev1.Node).ProtoReflect().Descriptor())
		if err != nil {
			t.Fatal(err)
		}
		err = manifest.Decode(got, new(nodev1.Node))
		if err == nil || !strings.Contains(err.Error(), `unknown field "spec.a"`) ||
			!strings.Contains(err.Error(), `unknown field "spec.c"`) {
			t.Errorf("%s: %v", media, err)
		}
	}
}

func TestPatchRefuses(t *testing.T) {
	const original = `{"metadata":{"name":"a","finalizers":["x"],"ownerReferences":[{"uid":"u"}]},"spec":{"taints":[{"key":"a"}]}}`
	for name, c := range map[string]struct {
		media, patch string
		want         error
	}{
		"no type":        {"", `{}`, manifest.ErrPatchType},
		"an apply patch": {"application/apply-patch+yaml", `{}`, manifest.ErrPatchType},
		"plain JSON":     {"application/json", `{}`, manifest.ErrPatchType},
		"a failed test": {
			manifest.JSONPatch, `[{"op":"test","path":"/metadata/name","value":"b"}]`,
			manifest.ErrPatchTest,
		},
		"a test of what is not there": {
			manifest.JSONPatch, `[{"op":"test","path":"/metadata/uid","value":"b"}]`,
			manifest.ErrPatchTest,
		},
		"an operation without path": {manifest.JSONPatch, `[{"op":"add"}]`, manifest.ErrPatchSyntax},
		"an unknown operation":      {manifest.JSONPatch, `[{"op":"jump","path":"/a"}]`, manifest.ErrPatchSyntax},
		"a path that is not there": {
			manifest.JSONPatch, `[{"op":"remove","path":"/metadata/uid"}]`,
			manifest.ErrPatchSyntax,
		},
		"a negative index": {
			manifest.JSONPatch, `[{"op":"remove","path":"/spec/taints/-1"}]`,
			manifest.ErrPatchSyntax,
		},
		"an object as JSON patch": {manifest.JSONPatch, `{}`, manifest.ErrPatchSyntax},
		"too many operations": {
			manifest.JSONPatch, `[` + strings.Repeat(`{},`, 10_000) + `{}]`,
			manifest.ErrPatchSyntax,
		},
		"a list as merge patch":   {manifest.MergePatch, `[]`, manifest.ErrPatchSyntax},
		"null as merge patch":     {manifest.MergePatch, `null`, manifest.ErrPatchSyntax},
		"a key given twice":       {manifest.MergePatch, `{"a":1,"a":2}`, manifest.ErrPatchSyntax},
		"a patch that is no JSON": {manifest.StrategicPatch, `{`, manifest.ErrPatchSyntax},
		"nesting that is too deep": {manifest.MergePatch, `{"a":` + strings.Repeat("[", 50_000) +
			strings.Repeat("]", 50_000) + `}`, manifest.ErrPatchSyntax},
		"a list element without its key": {
			manifest.StrategicPatch, `{"metadata":{"ownerReferences":[{"name":"a"}]}}`,
			manifest.ErrPatchSyntax,
		},
		"an object for a list": {manifest.StrategicPatch, `{"spec":{"taints":{"$patch":"delete"}}}`, nil},
		"an unknown directive": {manifest.StrategicPatch, `{"spec":{"$patch":"jump"}}`, manifest.ErrPatchSyntax},
		"an order that is no list": {
			manifest.StrategicPatch, `{"spec":{"$setElementOrder/taints":7}}`,
			manifest.ErrPatchSyntax,
		},
		"text in a list of objects": {
			manifest.StrategicPatch, `{"metadata":{"ownerReferences":["a"]}}`,
			manifest.ErrPatchSyntax,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := manifest.Patch([]byte(original), c.media, []byte(c.patch), new(nodev1.Node).ProtoReflect().Descriptor())
			if c.want == nil { // whatever comes out must then be refused by Decode, or be a node
				return
			}
			if !errors.Is(err, c.want) {
				t.Errorf("result %s, error %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestPatchWithoutDescriptorTreatsAllAsFreeForm(t *testing.T) {
	var none protoreflect.MessageDescriptor
	got, err := manifest.Patch([]byte(`{"taints":[{"key":"a"}]}`), manifest.StrategicPatch,
		[]byte(`{"taints":[{"key":"b"}]}`), none)
	if err != nil || string(got) != `{"taints":[{"key":"b"}]}` {
		t.Errorf("result %s, %v", got, err)
	}
}
