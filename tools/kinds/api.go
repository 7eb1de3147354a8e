package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// apiPage is the page of the API. Its part after the mark is generated.
const (
	apiPage = "docs/api.md"
	apiMark = "<!-- tools/kinds writes everything below from proto/: make generate. -->\n\n"
)

// provider is the package of what is between machine-api and its provider alone.
const provider = "windlass.provider.v1"

//go:embed api.md.tmpl
var apiText string

var apiTemplate = template.Must(template.New("api").Parse(apiText))

// MethodList is the standard methods of the kind for people.
func (k kind) MethodList() string {
	if len(k.Methods) == len(standard) {
		return "all"
	}
	return strings.Join(k.Methods, ", ")
}

// packageRows is the methods of one package, each as a row of a table.
type packageRows struct {
	Name    string
	Methods []string
}

// api returns the page of the API: what is written there, followed by all kinds and methods.
func api(
	root string, kinds []kind, unchanged map[protoreflect.FullName]bool, files linker.Files, types linker.Resolver,
) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(root, apiPage))
	if err != nil {
		return nil, err
	}
	prose, _, ok := bytes.Cut(page, []byte(apiMark))
	if !ok {
		return nil, fmt.Errorf("%s has no line %q", apiPage, apiMark)
	}
	data := struct {
		Kinds    []kind
		Plans    []string
		Packages []packageRows
	}{Kinds: kinds}
	for _, f := range files { // by name, so by package
		if f.Package() == provider {
			continue
		}
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				m := f.Services().Get(i).Methods().Get(j)
				row, verb, err := methodRow(m, types)
				switch {
				case err != nil:
					return nil, err
				case unchanged[m.FullName()]:
				case verb == "plan":
					data.Plans = append(data.Plans, row)
				default:
					if n := len(data.Packages); n == 0 || data.Packages[n-1].Name != string(f.Package()) {
						data.Packages = append(data.Packages, packageRows{Name: string(f.Package())})
					}
					last := &data.Packages[len(data.Packages)-1]
					last.Methods = append(last.Methods, row)
				}
			}
		}
	}
	out := bytes.NewBuffer(slices.Concat(prose, []byte(apiMark)))
	if err := apiTemplate.Execute(out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// access is the option (windlass.meta.v1.access).
type access struct {
	Verb, Group, Resource                       string
	CheckedByMethod, Unauthenticated, OfRequest bool
}

func (a access) String() string {
	if a.Unauthenticated {
		return "none: the request contains a token"
	}
	if a.Verb == "" {
		return "none: Windlass is the caller"
	}
	if a.OfRequest {
		return fmt.Sprintf("`%s` on `{resource}%s` of `{group}`", a.Verb, a.Resource)
	}
	out := fmt.Sprintf("`%s` on `%s`", a.Verb, a.Resource)
	if a.Group != "" {
		out += fmt.Sprintf(" of `%s`", a.Group)
	}
	if a.CheckedByMethod {
		out += ", checked by the method"
	}
	return out
}

// rule is the option (google.api.http).
type rule struct {
	Get, Put, Post, Delete, Patch string
	AdditionalBindings            []rule
}

func (r rule) addresses() []string {
	var out []string
	for _, a := range []struct{ verb, path string }{
		{"GET", r.Get}, {"PUT", r.Put}, {"POST", r.Post}, {"DELETE", r.Delete}, {"PATCH", r.Patch},
	} {
		if a.path != "" {
			out = append(out, fmt.Sprintf("`%s %s`", a.verb, a.path))
		}
	}
	for _, b := range r.AdditionalBindings {
		out = append(out, b.addresses()...)
	}
	return out
}

// methodRow returns the cells of a method, and the verb of the right that it needs.
func methodRow(m protoreflect.MethodDescriptor, types linker.Resolver) (row, verb string, err error) {
	var right access
	var http rule
	_, err = option(m, "windlass.meta.v1.access", types, &right)
	if err == nil {
		_, err = option(m, "google.api.http", types, &http)
	}
	if err != nil {
		return "", "", err
	}
	addresses := cmp.Or(strings.Join(http.addresses(), ", "), "–")
	text := strings.Join(strings.Fields(m.ParentFile().SourceLocations().ByDescriptor(m).LeadingComments), " ")
	text, _, _ = strings.Cut(strings.TrimPrefix(text, string(m.Name())+" "), ". ")
	name := fmt.Sprintf("`%s/%s`", m.Parent().Name(), m.Name())
	return strings.Join([]string{name, addresses, right.String(), strings.TrimSuffix(text, ".")}, " | "), right.Verb, nil
}
