// Command sbom checks that a software bill of materials in the JSON format of CycloneDX is that of an executable: it
// has the executable's hash, and exactly the modules that `go version -m` prints, with their versions, and the standard
// library.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom EXECUTABLE BOM")
		os.Exit(2)
	}
	faults, err := check(os.Args[1], os.Args[2])
	if err != nil {
		faults = []string{err.Error()}
	}
	for _, f := range faults {
		fmt.Fprintln(os.Stderr, "sbom:", f)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// bom is the part of a bill of materials that is checked.
type bom struct {
	Metadata struct {
		Component struct {
			Name string `json:"name"`
		} `json:"component"`
		Properties []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"properties"`
	} `json:"metadata"`
	Components []struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"components"`
}

// check returns what is wrong with the bill of materials of an executable.
func check(executable, file string) ([]string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bom
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	info, err := buildinfo.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(program)
	return compare(info, hex.EncodeToString(hash[:]), b), nil
}

// compare returns how a bill of materials differs from the build information and the hash of an executable.
func compare(info *debug.BuildInfo, hash string, b bom) []string {
	var out []string
	if b.Metadata.Component.Name != info.Main.Path {
		out = append(out, fmt.Sprintf("it is of %q, not of %s", b.Metadata.Component.Name, info.Main.Path))
	}
	if recorded := b.property("cdx:gomod:binary:hash:SHA-256"); recorded != hash {
		out = append(out, fmt.Sprintf("it is of an executable with the hash %q, not %s", recorded, hash))
	}
	want := map[string]bool{"std@" + strings.Fields(info.GoVersion)[0]: true}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		want[m.Path+"@"+m.Version] = true
	}
	got := map[string]bool{}
	for _, c := range b.Components {
		got[c.Name+"@"+c.Version] = true
	}
	for _, m := range slices.Sorted(maps.Keys(want)) {
		if !got[m] {
			out = append(out, m+" is missing")
		}
	}
	for _, m := range slices.Sorted(maps.Keys(got)) {
		if !want[m] {
			out = append(out, m+" is not in the executable")
		}
	}
	return out
}

func (b bom) property(name string) string {
	for _, p := range b.Metadata.Properties {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}
