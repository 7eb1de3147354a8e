package main

import (
	"bytes"
	_ "embed"
	"go/format"
	"path/filepath"
	"strings"
	"text/template"
)

// programList is the list of the services that the one executable runs.
const programList = "services/windlass/program/services.go"

//go:embed program.go.tmpl
var programText string

var programTemplate = template.Must(template.New("program").Parse(programText))

// programs returns programList: every folder of services with a package service, whose Run it is.
func programs(root string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(root, "services", "*", "service", "service.go")) // ordered
	if err != nil {
		return nil, err
	}
	var services []struct{ Name, Alias string }
	for _, f := range files {
		name := filepath.Base(filepath.Dir(filepath.Dir(f)))
		services = append(services, struct{ Name, Alias string }{name, strings.ReplaceAll(name, "-", "")})
	}
	var b bytes.Buffer
	if err := programTemplate.Execute(&b, services); err != nil {
		return nil, err
	}
	return format.Source(b.Bytes())
}
