package catalog

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Route is one REST address of a method.
type Route struct {
	Method   *Method
	Verb     string // of HTTP: "GET"
	Template string // "/v1/nodes/{name}:cordon"
	// Body is the request's field that the body fills: "*" for all that is not in the path, "" for none.
	Body string
	// Fields are the request's fields that the path sets.
	Fields []string

	segments []string
	custom   string // verb after the colon, "" for none
}

func newRoute(m *Method, rule *annotations.HttpRule) (*Route, error) {
	verb, template := pattern(rule)
	if verb == "" || !strings.HasPrefix(template, "/") {
		return nil, fmt.Errorf("REST address %q is not of a known form", template)
	}
	r := &Route{Method: m, Verb: verb, Template: template, Body: rule.GetBody()}
	path := template[1:]
	if i := strings.LastIndexByte(path, ':'); i > strings.LastIndexByte(path, '/') {
		path, r.custom = path[:i], path[i+1:]
	}
	r.segments = strings.Split(path, "/")
	for _, s := range r.segments {
		field, isField := variable(s)
		switch {
		case isField && m.Desc.Input().Fields().ByName(protoreflect.Name(field)) == nil:
			return nil, fmt.Errorf("REST address %q: no field %q of the request", template, field)
		case isField:
			r.Fields = append(r.Fields, field)
		case strings.ContainsAny(s, "{}*="):
			return nil, fmt.Errorf("REST address %q: %q is not of a known form", template, s)
		}
	}
	return r, nil
}

func pattern(rule *annotations.HttpRule) (verb, template string) {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Put:
		return http.MethodPut, p.Put
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	}
	return "", ""
}

// variable reports whether a segment is of the form {field}.
func variable(segment string) (field string, ok bool) {
	if len(segment) < 3 || segment[0] != '{' || segment[len(segment)-1] != '}' {
		return "", false
	}
	field = segment[1 : len(segment)-1]
	return field, !strings.ContainsAny(field, "{}*=.")
}

func (r *Route) matches(path []string) bool {
	if len(path) != len(r.segments) {
		return false
	}
	for i, want := range r.segments {
		got := path[i]
		if i == len(path)-1 && r.custom != "" {
			before, found := strings.CutSuffix(got, ":"+r.custom)
			if !found {
				return false
			}
			got = before
		}
		if _, isField := variable(want); isField && got != "" {
			continue
		}
		if got != want {
			return false
		}
	}
	return true
}

// Match finds the route of a path that is still escaped. Without one it returns the HTTP methods that the path has,
// which may be none. A route with a custom verb goes before one that takes the verb for a part of the name.
func (c *Catalog) Match(verb, path string) (*Route, []string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	var best *Route
	var verbs []string
	for _, r := range c.routes {
		if !r.matches(parts) {
			continue
		}
		if r.Verb == verb && (best == nil || best.custom == "") {
			best = r
		}
		if !slices.Contains(verbs, r.Verb) {
			verbs = append(verbs, r.Verb)
		}
	}
	if best != nil {
		return best, nil
	}
	slices.Sort(verbs)
	return nil, verbs
}
