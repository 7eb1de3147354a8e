package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func TestSplitFindsEveryDocument(t *testing.T) {
	const a, b = `1 a/v1 A {"apiVersion":"a/v1","kind":"A"}`, `{"kind":"B","z":1}`
	for name, c := range map[string]struct {
		text string
		want []string // line, apiVersion, kind, JSON
	}{
		"nothing":           {"", nil},
		"comments only":     {"# a\n---\n# b\n---\n...\n", nil},
		"one":               {"kind: A\napiVersion: a/v1\n", []string{a}},
		"a byte order mark": {"\ufeffkind: A\napiVersion: a/v1\n", []string{a}},
		"two, the second after comments": {
			"kind: A\napiVersion: a/v1\n--- # next\n\n# b\nz: 1\nkind: B\n",
			[]string{a, "6  B " + b},
		},
		"markers before and between": {
			"---\n---\nkind: B\nz: 1\n---\n---\nkind: B\nz: 1\n---\n",
			[]string{"3  B " + b, "7  B " + b},
		},
		"an end of document": {"kind: B\nz: 1\n...\nkind: B\nz: 1\n", []string{"1  B " + b, "4  B " + b}},
		"line ends of Windows": {
			"kind: B\r\nz: 1\r\n---\r\nkind: B\r\nz: 1\r\n",
			[]string{"1  B " + b, "4  B " + b},
		},
		"line ends of old Macs": {"kind: B\rz: 1\r---\rkind: B\rz: 1\r", []string{"1  B " + b, "4  B " + b}},
		"line ends of Unicode": {
			"kind: B\nz: 1\u2028---\u0085kind: B\nz: 1\n",
			[]string{"1  B " + b, "4  B " + b},
		},
		"a directive": {"%YAML 1.1\n---\nkind: B\nz: 1\n", []string{"3  B " + b}},
		"content behind a marker": {
			"--- {kind: B, z: 1}\n--- {\"kind\":\"B\",\"z\":1}\n",
			[]string{"1  B " + b, "2  B " + b},
		},
		"a marker inside text":   {"kind: B\nz: |\n  ---\n  x\n", []string{`1  B {"kind":"B","z":"---\nx\n"}`}},
		"more than three dashes": {"kind: B\nz: 1\n#----\n", []string{"1  B " + b}},
		"a JSON object": {
			" \n{\"apiVersion\": \"a/v1\",\n \"kind\": \"A\"}",
			[]string{`2 a/v1 A {"apiVersion":"a/v1","kind":"A"}`},
		},
		"JSON objects one after another": {
			"{\"kind\":\"B\",\"z\":1}\n{\"kind\":\"B\",\"z\":1}{\"kind\":\"B\",\"z\":1}",
			[]string{"1  B " + b, "2  B " + b, "2  B " + b},
		},
		"JSON between markers": {
			"{\"kind\":\"B\",\"z\":1}\n---\nkind: B\nz: 1\n---\n{\"kind\":\"B\",\"z\":1}",
			[]string{"1  B " + b, "3  B " + b, "6  B " + b},
		},
		"JSON with escapes YAML does not know": {
			`{"kind":"B","z":"\ud83d\ude00"}`,
			[]string{`1  B {"kind":"B","z":"\ud83d\ude00"}`},
		},
		"a flow mapping that is no JSON": {"{kind: B, z: 1}", []string{"1  B " + b}},
		"other spellings of apiVersion": {
			"apiversion: a/v1\nkind: A\n---\nversion: a/v1\nkind: A\n---\n{\"version\":\"a/v1\",\"kind\":\"A\"}",
			[]string{a, `4 a/v1 A {"kind":"A","apiVersion":"a/v1"}`, `7 a/v1 A {"apiVersion":"a/v1","kind":"A"}`},
		},
		"a version beside apiVersion": {
			"apiVersion: a/v1\nkind: A\nversion: 1\n",
			[]string{`1 a/v1 A {"apiVersion":"a/v1","kind":"A","version":1}`},
		},
		"YAML 1.1": {
			"kind: B\na: yes\nb: 4.10\nc: 0x1F\nd: ~\non: \"on\"\n",
			[]string{`1  B {"a":true,"b":4.1,"c":31,"d":null,"kind":"B","true":"on"}`},
		},
		"characters that HTML escapes": {
			"kind: B\na: <node> & co\n",
			[]string{`1  B {"a":"<node> & co","kind":"B"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := manifest.Split(strings.NewReader(c.text), "file.yaml")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range documents {
				got = append(got, fmt.Sprintf("%d %s %s %s", d.Line, d.APIVersion, d.Kind, d.JSON))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplitRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a part without kind":        {"kind: A\n---\n# x\na: 1\n", "f:4: the document has no kind"},
		"a JSON object without kind": {"{\"kind\":\"A\"}\n{\"kind\":null}", "f:2: the document has no kind"},
		"every wrong part": {
			"a: 1\n---\nkind: A\n---\n- 1\n---\nb: 1\n",
			"f:1: the document has no kind\nf:5: the document is not an object\nf:7: the document has no kind",
		},
		"a kind that is no text": {"a: 1\nkind: yes\n", "f:2: kind: must be text, not true"},
		"a list":                 {"[1]", "f:1: the document is not an object"},
		"a key given twice": {
			"kind: A\n---\nkind: A\nspec:\n  a: 1\n  b: 2\n  a: 3\n",
			`f:7: key "a" already set in map`,
		},
		"a key given twice in JSON": {
			"{\"kind\":\"A\",\n\"spec\":{\"a\":1,\n\"a\":2}}",
			"f:3: spec.a: is given twice",
		},
		"keys that become the same in JSON": {"kind: A\na:\n  1: x\n  \"1\": y\n", "f:4: a.1: is given twice"},
		"a key that is a list":              {"kind: A\nb:\n  [a]: 1\n", "f:1: invalid map key: []interface {}{\"a\"}"},
		"a key that is null":                {"kind: A\nb:\n  ~: 1\n", "f:2: b: a key must be text, not <nil>"},
		"a tab": {
			"kind: A\n---\nkind: A\na:\n\tb: 1\n",
			"f:5: found character that cannot start any token",
		},
		"text behind an end": {"kind: A\n... b\n", "f:2: text follows the end of a document"},
		"infinity":           {"kind: A\na: .inf\n", "f:2: a: must be a finite number"},
		"invalid UTF-8":      {"kind: A\na: \xff\n", "f:2: is not valid UTF-8"},
		"an alias": {
			"kind: A\na: &a b\n---\nkind: B\nc: *a\n",
			"f:2: anchors and aliases (& and *) are not allowed: repeat the value\nf:5: anchors and aliases (& and *) are not allowed: repeat the value",
		},
		"a merge key": {
			"kind: A\na:\n  <<: {b: 1}\n",
			"f:3: merge keys (<<) are not allowed: repeat the keys",
		},
		"a long document": {
			"kind: A\na: " + strings.Repeat("x", 8<<20),
			"f:1: the document is longer than 8388608 bytes",
		},
		"a JSON object that is too long": {
			`{"kind":"` + strings.Repeat("x", 8<<20) + `"}`,
			"f:1: the document is longer than 8388608 bytes",
		},
		"nesting that is too deep for JSON": {`{"kind":"A","a":` + strings.Repeat("[", 100_000) +
			strings.Repeat("]", 100_000) + `}`, "f:1: a" + strings.Repeat("[0]", 29) +
			": more than 30 objects and lists inside each other"},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := manifest.Split(strings.NewReader(c.text), "f")
			if documents != nil || err == nil || err.Error() != c.want {
				t.Errorf("%d documents, error %q, want %q", len(documents), err, c.want)
			}
			var syntax *manifest.SyntaxError
			if !errors.As(err, &syntax) {
				t.Errorf("error is %T, want a *SyntaxError inside", err)
			}
		})
	}
}

const wrongMachine = `# a comment
apiversion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  labels:
    a/b: x
  annotations: {a/b: x}
spec:
  lifecycleHooks:
    preDrain:
    - name: EtcdQuorumOperator
      owner: clusteroperator/etcd
    - name: Second
      onwer: me
  taints: [{key: a,
    efect: b}]
  providerID: 7
`

func TestLocateNamesTheLine(t *testing.T) {
	documents, err := manifest.Split(strings.NewReader("kind: A\n---\n"+wrongMachine), "file.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := documents[1]
	err = d.Locate(manifest.Decode(d.JSON, new(machinev1.Machine)))
	const want = `file.yaml:16: spec.lifecycleHooks.preDrain[1].onwer: unknown field
file.yaml:19: spec.providerID: must be text, not 7
file.yaml:18: spec.taints[0].efect: unknown field`
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other := errors.New("other")
	if got := d.Locate(other); got != other {
		t.Errorf("Locate changed another error to %v", got)
	}
}

func TestLineOf(t *testing.T) {
	documents, err := manifest.Split(strings.NewReader(wrongMachine), "file.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"":                                      2,
		"apiVersion":                            2,
		"kind":                                  3,
		"metadata.labels['a/b']":                6,
		"metadata.annotations['a/b']":           7,
		"spec.lifecycleHooks.preDrain[0]":       11,
		"spec.lifecycleHooks.preDrain[1].owner": 13, // not there: the element that it should be in
		"spec.lifecycleHooks.preDrain[Second].name": 13,
		"spec.lifecycleHooks.preDrain[7]":           10,
		"status.phase":                              2,
		"[":                                         2,
	} {
		if got := documents[0].LineOf(path); got != want {
			t.Errorf("LineOf(%q) = %d, want %d", path, got, want)
		}
	}
	if got := (manifest.Document{Line: 4}).LineOf("a"); got != 4 {
		t.Errorf("LineOf a document built in code = %d, want 4", got)
	}
}

func TestJSONTakesOneDocument(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "# a\n": "", "a: 1\n": `{"a":1}`, "---\n[1, x]\n": `[1,"x"]`, "{\"a\":\n 1}": "{\"a\":\n 1}",
		"\ufeffx": `"x"`,
	} {
		if got, err := manifest.JSON([]byte(text)); string(got) != want || err != nil {
			t.Errorf("JSON(%q) = %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"a: 1\n---\nb: 1\n": "line 3: there is more than one document",
		"a:\n- &x 1\n":      "line 2: anchors and aliases (& and *) are not allowed: repeat the value",
		"a: 1\na: 2\n":      `line 2: key "a" already set in map`,
		"a: \xff":           "line 1: is not valid UTF-8",
		"{}{}":              "line 1: there is more than one document",
	} {
		if got, err := manifest.JSON([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("JSON(%q) = %s, %v; want %s", text, got, err, want)
		}
	}
}
