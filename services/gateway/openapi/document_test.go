package openapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/windlass-dev/windlass/gen"
	"github.com/windlass-dev/windlass/services/gateway/openapi"
)

func TestTheDocumentHasAllServicesAndNoReferenceLeadsNowhere(t *testing.T) {
	data, err := openapi.Document(gen.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ OperationID string }
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/v1/machines", "/v1/hooktasks/{name}:claim", "/v1/quorum", "/v1/nodes/{name}",
		"/v1/events:watch",
	} {
		if document.Paths[path] == nil {
			t.Errorf("no path %s", path)
		}
	}
	ids := map[string]string{}
	for path, verbs := range document.Paths {
		for verb, operation := range verbs {
			if other := ids[operation.OperationID]; other != "" {
				t.Errorf("%s %s and %s have the same id", verb, path, other)
			}
			ids[operation.OperationID] = verb + " " + path
		}
	}
	const reference = `"$ref":"#/components/schemas/`
	for _, part := range strings.Split(string(data), reference)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if document.Components.Schemas[name] == nil {
			t.Errorf("no schema %s", name)
		}
	}
	for _, want := range []string{
		"application/x-ndjson", "application/strategic-merge-patch+json", "BOOKMARK",
		"mutualTLS",
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the document does not speak of %s", want)
		}
	}
}

func TestTwoDescriptionsOfOneAddressAreRefused(t *testing.T) {
	one := &fstest.MapFile{Data: []byte(`{"paths":{"/a":{"get":{}}}}`)}
	if _, err := openapi.Document(fstest.MapFS{"a.openapi.json": one, "b.openapi.json": one}); err == nil {
		t.Error("no error")
	}
}
