// Package openapi makes the one OpenAPI document of the gateway from those of the services, and serves the page that
// shows it.
package openapi

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

type object = map[string]any

// Document merges all *.openapi.json files below fsys and corrects what their generator cannot know: watches are lines,
// patches have media types of their own, and callers have certificates or tokens.
func Document(fsys fs.FS) ([]byte, error) {
	all := object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "Windlass",
			"version":     "v1",
			"description": "All services of a Windlass cluster behind one address. Errors are google.rpc.Status.",
		},
		"paths": object{},
		"components": object{
			"schemas": object{},
			"securitySchemes": object{
				"certificate": object{"type": "mutualTLS", "description": "A client certificate of the cluster's authority."},
				"token":       object{"type": "http", "scheme": "bearer"},
			},
		},
		"security": []any{object{"certificate": []any{}}, object{"token": []any{}}},
		"tags":     []any{},
	}
	err := fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".openapi.json") {
			return err
		}
		data, err := fs.ReadFile(fsys, path)
		if err != nil {
			return err
		}
		if err := add(all, data); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	correct(all)
	return json.Marshal(all)
}

func add(all object, data []byte) error {
	var one struct {
		Paths      map[string]object `json:"paths"`
		Components struct {
			Schemas object `json:"schemas"`
		} `json:"components"`
		Tags []any `json:"tags"`
	}
	if err := json.Unmarshal(data, &one); err != nil {
		return err
	}
	paths := all["paths"].(object)
	for path, operations := range one.Paths {
		there, ok := paths[path].(object)
		if !ok {
			there = object{}
			paths[path] = there
		}
		for verb, operation := range operations {
			if _, twice := there[verb]; twice {
				return fmt.Errorf("%s %s is described twice", verb, path)
			}
			there[verb] = operation
		}
	}
	maps.Copy(all["components"].(object)["schemas"].(object), one.Components.Schemas)
	all["tags"] = append(all["tags"].([]any), one.Tags...)
	return nil
}

// patchBodies are the media types of a patch and what their bodies are.
var patchBodies = map[string]string{
	"application/json-patch+json":            "array",
	"application/merge-patch+json":           "object",
	"application/strategic-merge-patch+json": "object",
}

func correct(all object) {
	for path, operations := range all["paths"].(object) {
		for verb, o := range operations.(object) {
			operation, ok := o.(object)
			if !ok {
				continue
			}
			if verb == "get" && streams(path) {
				asLines(operation)
			}
			if verb == "patch" {
				asPatch(operation)
			}
		}
	}
	tags := all["tags"].([]any)
	slices.SortFunc(tags, func(a, b any) int { return strings.Compare(tagName(a), tagName(b)) })
}

func tagName(tag any) string {
	t, _ := tag.(object)
	name, _ := t["name"].(string)
	return name
}

func streams(path string) bool {
	return strings.HasSuffix(path, ":watch") || strings.HasSuffix(path, ":stream")
}

// asLines says that the answer is one JSON document a line; a watch's is an event.
func asLines(operation object) {
	responses, _ := operation["responses"].(object)
	ok, _ := responses["200"].(object)
	content, _ := ok["content"].(object)
	schema, found := content["application/json"]
	if !found {
		return
	}
	if id, _ := operation["operationId"].(string); strings.Contains(id, "_Watch") {
		schema = object{"schema": object{
			"type":        "object",
			"description": "One line: an object after its change, or a BOOKMARK with the revision up to which all was sent. An error is the last line.",
			"properties": object{
				"type":   object{"type": "string", "enum": []any{"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}},
				"object": object{"type": "object"},
			},
		}}
	}
	ok["content"] = object{"application/x-ndjson": schema}
}

func asPatch(operation object) {
	body, ok := operation["requestBody"].(object)
	if !ok {
		return
	}
	content := object{}
	for media, kind := range patchBodies {
		content[media] = object{"schema": object{"type": kind}}
	}
	body["content"] = content
}
