package kinds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
)

func TestWhatIsWrongWithASecret(t *testing.T) {
	bytes := func(pairs ...string) map[string][]byte {
		m := map[string][]byte{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = []byte(pairs[i+1])
		}
		return m
	}
	for what, c := range map[string]struct {
		secret *schedulingv1.Secret
		want   []string
	}{
		"nothing": {&schedulingv1.Secret{Data: bytes("a.b-c_D", "v")}, nil},
		"keys that are no names of files": {
			&schedulingv1.Secret{Data: bytes("..", "v", "a/b", "v")}, []string{"data['..']", "data['a/b']"},
		},
		"too large": {
			&schedulingv1.Secret{Data: bytes("a", strings.Repeat("x", maxConfigBytes), "b", "y")},
			[]string{"data"},
		},
		"a certificate without key": {
			&schedulingv1.Secret{Type: "kubernetes.io/tls", Data: bytes("tls.crt", "x")}, []string{"data['tls.key']"},
		},
		"a login without anything": {&schedulingv1.Secret{Type: "kubernetes.io/basic-auth"}, []string{"data"}},
		"a registry's login that is no JSON": {
			&schedulingv1.Secret{Type: "kubernetes.io/dockerconfigjson", Data: bytes(".dockerconfigjson", "hunter2")},
			[]string{"data['.dockerconfigjson']"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			defaultSecret(c.secret)
			bad := validateSecret(c.secret)
			if diff := cmp.Diff(c.want, paths(bad)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, f := range bad {
				if strings.Contains(f.String(), "hunter2") {
					t.Errorf("a fault has a value: %s", f)
				}
			}
		})
	}
}

func TestStringDataIsMergedIntoData(t *testing.T) {
	s := &schedulingv1.Secret{
		Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")}, StringData: map[string]string{"b": "3", "c": "4"},
	}
	defaultSecret(s)
	want := map[string][]byte{"a": []byte("1"), "b": []byte("3"), "c": []byte("4")}
	if diff := cmp.Diff(want, s.GetData()); diff != "" || len(s.GetStringData()) > 0 || s.GetType() != opaque {
		t.Errorf("secret is %v (-want +got):\n%s", s, diff)
	}
}

func TestImmutableDataCannotChange(t *testing.T) {
	old := &schedulingv1.Secret{Type: opaque, Immutable: proto.Bool(true), Data: map[string][]byte{"a": []byte("1")}}
	next := &schedulingv1.Secret{Type: "other", Data: map[string][]byte{"a": []byte("2")}}
	if diff := cmp.Diff([]string{"type", "immutable", "data"}, paths(validateSecretUpdate(old, next))); diff != "" {
		t.Errorf("secret (-want +got):\n%s", diff)
	}
	m := &schedulingv1.ConfigMap{Immutable: proto.Bool(true), Data: map[string]string{"a": "1"}}
	changed := proto.CloneOf(m)
	changed.BinaryData = map[string][]byte{"b": {0xff}}
	if diff := cmp.Diff([]string{"binaryData"}, paths(validateConfigMapUpdate(m, changed))); diff != "" {
		t.Errorf("config map (-want +got):\n%s", diff)
	}
	if bad := validateConfigMapUpdate(m, m); len(bad) > 0 {
		t.Errorf("no change is refused: %v", bad)
	}
	both := &schedulingv1.ConfigMap{Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"a": nil}}
	if diff := cmp.Diff([]string{"binaryData['a']"}, paths(validateConfigMap(both))); diff != "" {
		t.Errorf("a key twice (-want +got):\n%s", diff)
	}
}
