package manifest_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func compactProtojson(t interface{ Fatal(...any) }, m proto.Message) string {
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEncodeWritesTheBytesOfProtojson(t *testing.T) {
	generator := messages(newMessages(t, "Everything"))
	rapid.Check(t, func(t *rapid.T) {
		m := generator.Draw(t, "message")
		want := compactProtojson(t, m)
		got, err := manifest.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("(-protojson +Encode):\n%s", diff)
		}
	})
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for _, fresh := range []func() proto.Message{
		newMessages(t, "Everything"),
		func() proto.Message { return new(machinev1.Machine) },
		func() proto.Message { return new(metav1.ObjectMeta) },
		func() proto.Message { return new(structpb.Struct) },
	} {
		generator := messages(fresh)
		rapid.Check(t, func(t *rapid.T) {
			want, got := generator.Draw(t, "message"), fresh()
			text, err := manifest.Encode(want)
			if err != nil {
				t.Fatal(err)
			}
			if err := manifest.Decode(text, got); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestYAMLGivesBackWhatWasEncoded(t *testing.T) {
	fresh := func() proto.Message { return new(machinev1.Machine) }
	generator := messages(fresh)
	rapid.Check(t, func(t *rapid.T) {
		want, got := generator.Draw(t, "message").(*machinev1.Machine), fresh()
		want.Kind = "Machine"
		text, err := manifest.YAML(want)
		if err != nil {
			t.Fatal(err)
		}
		documents, err := manifest.Split(bytes.NewReader(text), "file.yaml")
		if err != nil || len(documents) != 1 {
			t.Fatalf("%d documents, %v in\n%s", len(documents), err, text)
		}
		if err := manifest.Decode(documents[0].JSON, got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s\nin\n%s", diff, text)
		}
	})
}

func TestEncodeIsExact(t *testing.T) {
	for want, m := range map[string]proto.Message{
		`{}`: &machinev1.Machine{},
		`{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"a","labels":{"a":"1","b":"<2>"}},"spec":{"providerID":"x"},"status":{}}`: &machinev1.Machine{
			Status: &machinev1.MachineStatus{}, Spec: &machinev1.MachineSpec{ProviderId: "x"}, Kind: "Machine",
			ApiVersion: "machine.openshift.io/v1beta1",
			Metadata:   &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"b": "<2>", "a": "1"}},
		},
		`"2026-01-02T03:04:05Z"`:        &timestamppb.Timestamp{Seconds: 1767323045},
		`"2026-01-02T03:04:05.120Z"`:    &timestamppb.Timestamp{Seconds: 1767323045, Nanos: 120_000_000},
		`"-0.000000001s"`:               &durationpb.Duration{Nanos: -1},
		`1e-7`:                          wrapperspb.Double(1e-7),
		`100000000000000000000`:         wrapperspb.Double(1e20),
		`1e+21`:                         wrapperspb.Double(1e21),
		`"NaN"`:                         wrapperspb.Double(math.NaN()),
		`1e+21 `:                        wrapperspb.Float(1e21),
		`"` + "\u2028\\u001f\x7f" + `"`: wrapperspb.String("\u2028\x1f\x7f"),
		`"a.b,cD"`:                      &fieldmaskpb.FieldMask{Paths: []string{"a.b", "c_d"}},
		`{"@type":"type.googleapis.com/google.protobuf.StringValue","value":"x"}`: mustAny(t, wrapperspb.String("x")),
	} {
		got, err := manifest.Encode(m)
		if want = strings.TrimSpace(want); err != nil || string(got) != want {
			t.Errorf("Encode = %s, %v, want %s", got, err, want)
		}
		if want != compactProtojson(t, m) {
			t.Errorf("protojson writes %s, want %s", compactProtojson(t, m), want)
		}
	}
	if got, err := manifest.Encode(nil); err != nil || string(got) != "{}" {
		t.Errorf("Encode(nil) = %s, %v", got, err)
	}
}

func mustAny(t *testing.T, m proto.Message) proto.Message {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestEncodeRefusesWhatJSONCannotSay(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"an empty value":          &structpb.Value{},
		"an empty value inside":   &structpb.Struct{Fields: map[string]*structpb.Value{"a": {}}},
		"a nil value in a map":    &structpb.Struct{Fields: map[string]*structpb.Value{"a": nil}},
		"not a number":            structpb.NewNumberValue(math.NaN()),
		"a time before the first": &timestamppb.Timestamp{Seconds: -62135596801},
		"a time with bad nanos":   &timestamppb.Timestamp{Nanos: 1_000_000_000},
		"a length of two signs":   &durationpb.Duration{Seconds: 1, Nanos: -1},
		"text that is not UTF-8":  &metav1.ObjectMeta{Name: "\xff"},
		"a key that is not UTF-8": &metav1.ObjectMeta{Labels: map[string]string{"\xff": ""}},
		"an unknown Any":          &anypb.Any{TypeUrl: "type.googleapis.com/no.such.Type"},
	} {
		if got, err := manifest.Encode(m); err == nil {
			t.Errorf("%s: Encode = %s, want an error", name, got)
		}
	}
}

func TestYAMLLooksLikeKubectl(t *testing.T) {
	replicas := int32(0)
	m := &machinev1.MachineSet{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet",
		Metadata: &metav1.ObjectMeta{Name: "yes", CreationTimestamp: &timestamppb.Timestamp{Seconds: 1767323045}},
		Spec:     &machinev1.MachineSetSpec{Replicas: &replicas},
		Status:   &machinev1.MachineSetStatus{},
	}
	const want = `apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata:
  creationTimestamp: "2026-01-02T03:04:05Z"
  name: "yes"
spec:
  replicas: 0
status: {}
`
	got, err := manifest.YAML(m)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
