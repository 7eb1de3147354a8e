package manifest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func problems(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var found *manifest.Errors
	if !errors.As(err, &found) {
		t.Fatalf("error is %T (%v), want *manifest.Errors", err, err)
	}
	var texts []string
	for _, p := range found.Problems {
		texts = append(texts, p.String())
	}
	return texts
}

func TestDecodeAgreesWithProtojson(t *testing.T) {
	fresh := newMessages(t, "Everything")
	for name, text := range map[string]string{
		"an empty object":               `{}`,
		"white space everywhere":        " { \"nodeName\" :\t\"a\" ,\r\n\"strings\": [ \"b\" , \"c\" ] } \n",
		"json_name with an acronym":     `{"providerID":"x","$ref":"y"}`,
		"escapes":                       `{"nodeName":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000"}`,
		"text beyond ASCII":             `{"nodeName":"été 😀"}`,
		"an integer in quotes":          `{"anInt32":"1","anInt64":"-9223372036854775808","aUint64":"18446744073709551615"}`,
		"an integer with a fraction":    `{"anInt32":1.0,"aUint32":"20.00"}`,
		"an integer with an exponent":   `{"anInt32":1e3,"anInt64":1.25E+2,"aSint32":-100e-2}`,
		"zeros in all spellings":        `{"anInt32":0,"aSint32":-0,"anInt64":0.0e5,"maybeInt32":0}`,
		"limits of 32 bits":             `{"anInt32":-2147483648,"aUint32":4294967295,"aFixed32":4294967295,"aSfixed32":2147483647}`,
		"floats":                        `{"aFloat":1.5,"aDouble":-2.5e-300}`,
		"floats by name":                `{"aFloat":"-Infinity","aDouble":"Infinity"}`,
		"a float in quotes":             `{"aFloat":"1.5","aDouble":"2"}`,
		"an enum by name and by number": `{"color":"COLOR_BLUE","colors":["COLOR_RED",1,7]}`,
		"bytes in every base64":         `{"someBytes":"-_8=","blobs":["+/8=","+/8","-_8"]}`,
		"null is absent":                `{"nodeName":null,"anInt32":null,"child":null,"strings":null,"labels":null,"time":null,"int32Value":null,"free":null,"one":null,"color":null}`,
		"optional zeros are kept":       `{"maybeString":"","maybeInt32":0,"maybeBool":false,"maybeColor":"COLOR_UNSPECIFIED"}`,
		"maps by type of key":           `{"byInt32":{"-1":"a"},"byUint64":{"7":"8"},"byBool":{"true":1,"false":2},"byName":{"a/b":{"nodeName":"x"}},"labels":{"":"empty"}}`,
		"an empty message is kept":      `{"child":{},"other":{},"empty":{},"free":{},"freeList":[]}`,
		"free form":                     `{"free":{"a":[1,"2",true,null,{"b":[]}],"c":1.5e-7},"numberOrString":"50%","freeList":[null,9007199254740991]}`,
		"numbers or strings":            `{"quantities":{"cpu":4,"memory":"8Gi"},"values":[1,"1"]}`,
		"a map of lists":                `{"arguments":{"feature-gates":["A=true","B=false"]}}`,
		"times":                         `{"time":"2026-01-02T03:04:05Z","times":["2026-01-02T03:04:05.123456789+02:00","0001-01-01T00:00:00Z","9999-12-31T23:59:59Z"]}`,
		"lengths of time":               `{"span":"1.5s","spans":{"a":"-0.000000001s","b":"0s","c":"315576000000s"}}`,
		"wrappers":                      `{"boolValue":false,"bytesValue":"AA==","doubleValue":"-Infinity","floatValue":1,"int32Value":0,"int64Value":"1","stringValue":"","uint32Value":1,"uint64Value":"2"}`,
		"types left to protojson":       `{"mask":"a,bC","any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}}`,
		"a union":                       `{"other":{"one":"x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			want, got := fresh(), fresh()
			if err := protojson.Unmarshal([]byte(text), want); err != nil {
				t.Fatal(err)
			}
			if err := manifest.Decode([]byte(text), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("other than protojson (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	fresh := newMessages(t, "Everything")
	const int32Wanted = "a whole number from -2147483648 to 2147483647"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"all unknown fields at once": {
			`{"nam":1,"child":{"x":{"y":[1,{}]},"strings":["a"]},"byName":{"a/b":{"z":null}},"children":[{},{"w":"q"}]}`,
			[]string{
				`unknown field "nam"`, `unknown field "child.x"`, `unknown field "byName['a/b'].z"`,
				`unknown field "children[1].w"`,
			},
		},
		"names of the proto file": {
			`{"node_name":"a","provider_id":"b"}`,
			[]string{`unknown field "node_name"`, `unknown field "provider_id"`},
		},
		"the wrong acronym": {`{"providerId":"b"}`, []string{`unknown field "providerId"`}},
		"a key given twice": {
			`{"nodeName":"a","child":{"aBool":true,"aBool":true},"nodeName":null}`,
			[]string{"child.aBool: is given twice", "nodeName: is given twice"},
		},
		"a map key given twice": {
			`{"labels":{"a":"1","a":"2"},"free":{"b":{"c":1,"c":null}}}`,
			[]string{"labels.a: is given twice", "free.b.c: is given twice"},
		},
		"null in a list": {
			`{"strings":["a",null],"children":[null],"values":[null]}`,
			[]string{"strings[1]: must not be null", "children[0]: must not be null", "values[0]: must not be null"},
		},
		"null in a map": {
			`{"labels":{"a":null},"quantities":{"cpu":null}}`,
			[]string{"labels.a: must not be null", "quantities.cpu: must not be null"},
		},
		"two of a union": {`{"one":"a","other":{}}`, []string{"other: cannot be set together with one"}},
		"text where a number must be": {
			`{"anInt32":"ten","numbers":[1,true,{}]}`,
			[]string{
				`anInt32: must be ` + int32Wanted + `, not "ten"`, "numbers[1]: must be " + int32Wanted + ", not true",
				"numbers[2]: must be " + int32Wanted + ", not an object",
			},
		},
		"a number where text must be": {`{"nodeName":4.1,"labels":{"a":true}}`, []string{
			"nodeName: must be text, not 4.1",
			"labels.a: must be text, not true",
		}},
		"a number out of range": {
			`{"anInt32":2147483648,"aUint32":-1,"aFloat":1e39,"aDouble":1e999,"anInt64":1e99,"byInt32":{"2147483648":"a"}}`,
			[]string{
				"anInt32: must be " + int32Wanted + ", not 2147483648",
				"aUint32: must be a whole number from 0 to 4294967295, not -1",
				"aFloat: must be a number in the range of a float, not 1e39",
				"aDouble: must be a number in the range of a double, not 1e999",
				"anInt64: must be a whole number from -9223372036854775808 to 9223372036854775807, not 1e99",
				"byInt32.2147483648: the key must be a int32",
			},
		},
		"a fraction in an integer": {
			`{"anInt32":1.5,"maybeInt32":" 1"}`,
			[]string{"anInt32: must be " + int32Wanted + ", not 1.5", `maybeInt32: must be ` + int32Wanted + `, not " 1"`},
		},
		"a bool in quotes": {`{"aBool":"true"}`, []string{`aBool: must be true or false, not "true"`}},
		"an unknown enum name": {
			`{"color":"RED"}`, []string{`color: must be the name of a value of test.Color, not "RED"`},
		},
		"what is no base64": {`{"someBytes":"a"}`, []string{`someBytes: must be text in base64, not "a"`}},
		"what is no time": {
			`{"time":"2026-01-02","times":["2026-01-02T03:04:05,5Z","2026-01-02T03:04:05.1234567890Z"]}`,
			[]string{
				`time: must be a time such as "2006-01-02T15:04:05Z", not "2026-01-02"`,
				`times[0]: must be a time such as "2006-01-02T15:04:05Z", not "2026-01-02T03:04:05,5Z"`,
				`times[1]: must be a time such as "2006-01-02T15:04:05Z", not "2026-01-02T03:04:05.1234567890Z"`,
			},
		},
		"a length of time in minutes": {
			`{"span":"10m","spans":{"a":1}}`,
			[]string{
				`span: must be a length of time in seconds such as "1.5s", not "10m"`,
				`spans.a: must be a length of time in seconds such as "1.5s", not 1`,
			},
		},
		"an object for a list": {
			`{"strings":{},"labels":[],"child":[],"free":"x","freeList":1}`,
			[]string{
				"strings: must be a list, not an object", "labels: must be an object, not a list",
				"child: must be an object, not a list", `free: must be an object, not "x"`, "freeList: must be a list, not 1",
			},
		},
		"large numbers in free form": {
			`{"free":{"a":[9007199254740992],"b":-9007199254740993},"numberOrString":1e300}`,
			[]string{
				"free.a[0]: must be a number below 2^53, not 9007199254740992; quote it to keep its digits",
				"free.b: must be a number below 2^53, not -9007199254740993; quote it to keep its digits",
				"numberOrString: must be a number below 2^53, not 1e300; quote it to keep its digits",
			},
		},
		"invalid UTF-8": {
			"{\"nodeName\":\"\xff\",\"free\":{\"a\":\"\\ud800\"}}",
			[]string{"nodeName: is not valid UTF-8", "free.a: is not valid UTF-8: half of a surrogate pair"},
		},
		"a bad key of a map of bools": {`{"byBool":{"yes":1}}`, []string{"byBool.yes: the key must be a bool"}},
		"a bad field mask":            {`{"mask":"a.b_c"}`, nil},
		"text behind the document": {
			`{"nodeName":"a"} {}`,
			[]string{"not valid JSON: something follows the end of the document at line 1 column 18"},
		},
		"nothing": {``, []string{"not valid JSON: a value is missing at line 1 column 1"}},
		"null":    {`null`, []string{"must be an object, not null"}},
		"an end that is missing": {
			"{\"child\":\n{\"aBool\":true",
			[]string{"child: not valid JSON: ',' or '}' is missing at line 2 column 14"},
		},
		"a comma too many": {
			`{"strings":["a",]}`,
			[]string{"strings: not valid JSON: a value is missing after ',' at line 1 column 17"},
		},
		"a number with a leading zero": {
			`{"anInt32":01}`, []string{"not valid JSON: ',' or '}' is missing at line 1 column 13"},
		},
		"a raw line end in text": {
			"{\"nodeName\":\"a\nb\"}",
			[]string{"nodeName: not valid JSON: a control character in a string at line 1 column 15"},
		},
		"a NUL behind the document": {
			"{}\x00", []string{"not valid JSON: something follows the end of the document at line 1 column 3"},
		},
		"keys without quotes": {
			`{nodeName:"a"}`, []string{"not valid JSON: a key in quotes is missing at line 1 column 2"},
		},
		"what is no word": {
			`{"aBool":tru}`, []string{"aBool: not valid JSON: a value is malformed at line 1 column 10"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := manifest.Decode([]byte(c.text), fresh())
			got := problems(t, err)
			if err == nil || c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("problems (-want +got):\n%s", cmp.Diff(c.want, got))
			}
		})
	}
}

func TestDecodeNestsThirtyDeep(t *testing.T) {
	nested := func(n int) []byte { // the message and its free form are two of n
		return []byte(`{"value":{"a":` + strings.Repeat("[", n-2) + strings.Repeat("]", n-2) + `}}`)
	}
	if err := manifest.Decode(nested(30), new(machinev1.ProviderSpec)); err != nil {
		t.Errorf("30 deep: %v", err)
	}
	want := []string{"value.a" + strings.Repeat("[0]", 28) + ": more than 30 objects and lists inside each other"}
	if got := problems(t, manifest.Decode(nested(31), new(machinev1.ProviderSpec))); !slices.Equal(got, want) {
		t.Errorf("31 deep: %q, want %q", got, want)
	}
	deep := []byte(`{"unknown":` + strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000) + `}`)
	if got := problems(t, manifest.Decode(deep, new(machinev1.ProviderSpec))); len(got) != 1 {
		t.Errorf("a million deep: %q, want one problem", got)
	}
}

func TestDecodeLimitsProblemsAndSize(t *testing.T) {
	many := `{"a0":0` + strings.Repeat(`,"a":0`, 1000) + `}`
	if got := problems(t, manifest.Decode([]byte(many), new(metav1.ObjectMeta))); len(got) != 100 ||
		!strings.Contains(got[99], "too many problems") {
		t.Errorf("%d problems, the last %q", len(got), got[len(got)-1])
	}
	long := `{"name":"` + strings.Repeat("x", 8<<20) + `"}`
	if got := problems(t, manifest.Decode([]byte(long), new(metav1.ObjectMeta))); len(got) != 1 ||
		!strings.Contains(got[0], "8388608 are allowed") {
		t.Errorf("problems of a long document: %q", got)
	}
}

func TestDecodeEmptiesTheMessageFirst(t *testing.T) {
	m := &metav1.ObjectMeta{Name: "old", Labels: map[string]string{"old": "x"}}
	if err := manifest.Decode([]byte(`{"labels":{"new":"y"}}`), m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&metav1.ObjectMeta{Labels: map[string]string{"new": "y"}}, m, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeReadsWellKnownTypesAsDocuments(t *testing.T) {
	for text, m := range map[string]proto.Message{
		`null`:    &structpb.Value{},
		`[1,"a"]`: &structpb.ListValue{},
		`{"a":1}`: &structpb.Struct{},
	} {
		if err := manifest.Decode([]byte(text), m); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := manifest.Encode(m); err != nil || string(got) != text {
			t.Errorf("%s comes back as %s, %v", text, got, err)
		}
	}
}

func TestErrorsReadLikeKubectl(t *testing.T) {
	err := manifest.Decode([]byte(`{"spec":{"lifecycelHooks":{},"taints":[{"kye":"a"}],"providerID":1}}`),
		new(machinev1.Machine))
	const want = `unknown field "spec.lifecycelHooks", unknown field "spec.taints[0].kye", spec.providerID: must be text, not 1`
	if err == nil || err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
	var found *manifest.Errors
	if !errors.As(err, &found) {
		t.Fatal("not an *Errors")
	}
	if got := fmt.Sprint(found.UnknownFields()); got != "[spec.lifecycelHooks spec.taints[0].kye]" {
		t.Errorf("UnknownFields = %s", got)
	}
}
