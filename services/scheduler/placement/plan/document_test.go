package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// load reads one of the documents in testdata, by the beginning of its name, into m.
func load[T proto.Message](t testing.TB, name string, m T) T {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", name+"*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v %v", name, files, err)
	}
	read(t, files[0], m)
	return m
}

func read(t testing.TB, file string, m proto.Message) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(file) != ".json" { // fragments have no kind, and all of them are JSON
		documents, err := manifest.Split(strings.NewReader(string(text)), file)
		if err != nil || len(documents) != 1 {
			t.Fatalf("%s: %d documents, %v", file, len(documents), err)
		}
		text = documents[0].JSON
	}
	if err := manifest.Decode(text, m); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func pod(t testing.TB, name string) *schedulingv1.Pod {
	p := load(t, name, &schedulingv1.Pod{})
	p.Metadata.Namespace = "default"
	return p
}
