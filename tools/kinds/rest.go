package main

import (
	"bytes"
	_ "embed"
	"go/format"
	"path"
	"text/template"

	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// restList is the list of the services that have REST addresses, for the gateway.
const restList = "gen/rest/rest.go"

//go:embed rest.go.tmpl
var restText string

var restTemplate = template.Must(template.New("rest").Parse(restText))

// goPackage is the Go package of a proto package.
type goPackage struct{ Alias, Path string }

// restService is one service that has REST addresses.
type restService struct {
	Alias string // of its Go package
	Name  string
	Full  protoreflect.FullName
}

// rest returns restList.
func rest(files linker.Files, types linker.Resolver) ([]byte, error) {
	var data struct {
		Packages []goPackage
		Services []restService
	}
	for _, f := range files { // by name, so by package
		folder := path.Dir(f.Path())
		p := goPackage{Path: "github.com/windlass-dev/windlass/gen/" + folder}
		p.Alias = path.Base(path.Dir(folder)) + path.Base(folder)
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			has, err := hasAddress(s, types)
			if err != nil {
				return nil, err
			}
			if !has {
				continue
			}
			if n := len(data.Packages); n == 0 || data.Packages[n-1] != p {
				data.Packages = append(data.Packages, p)
			}
			data.Services = append(data.Services, restService{Alias: p.Alias, Name: string(s.Name()), Full: s.FullName()})
		}
	}
	var b bytes.Buffer
	if err := restTemplate.Execute(&b, data); err != nil {
		return nil, err
	}
	return format.Source(b.Bytes())
}

// hasAddress reports whether a method of a service has a REST address.
func hasAddress(s protoreflect.ServiceDescriptor, types linker.Resolver) (bool, error) {
	for i := range s.Methods().Len() {
		if has, err := option(s.Methods().Get(i), "google.api.http", types, &rule{}); has || err != nil {
			return has, err
		}
	}
	return false, nil
}
