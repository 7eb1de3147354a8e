package release

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/windlass-dev/windlass/kit/manifest"
)

// Annotations of manifests.
const (
	annotationExclude    = "exclude.release.openshift.io/" // and an identity: "true" leaves the manifest out for it
	annotationInclude    = "include.release.openshift.io/" // and a profile: "true" takes it in for it
	annotationFeatureSet = "release.openshift.io/feature-set"
	annotationDelete     = "release.openshift.io/delete"
	annotationCreateOnly = "release.openshift.io/create-only"
)

// Manifest is a document of a file of a release.
type Manifest struct {
	File        string
	Document    int // place in the file, from 0
	APIVersion  string
	Kind        string
	Namespace   string
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Content     []byte         // unchanged from the file; as JSON where several share one list or line
	Object      map[string]any // as JSON values; whole numbers are int64
}

// readManifests reads the documents of a file. Items of a v1 List are documents too.
func readManifests(f File) ([]Manifest, error) {
	documents, err := manifest.Split(bytes.NewReader(f.Content), f.Name)
	if err != nil {
		return nil, err
	}
	var out []Manifest
	var failed []error
	for i, d := range documents {
		m, err := readManifest(f.Name, d.JSON)
		switch {
		case err != nil:
		case m.Kind == "List" && m.APIVersion == "v1":
			err = m.eachItem(func(item Manifest) { out = append(out, item) })
		default:
			m.Content = verbatim(f.Content, documents, i)
			err = m.check()
			out = append(out, m)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s:%d: %w", f.Name, d.Line, err))
		}
	}
	for i := range out {
		out[i].Document = i
	}
	return out, errors.Join(failed...)
}

// verbatim returns a document unchanged from its file, or as JSON where it cannot be cut out of it: lines are counted
// as YAML ends them, and documents of JSON need not begin on lines of their own.
func verbatim(content []byte, documents []manifest.Document, i int) []byte {
	if len(documents) == 1 {
		return content
	}
	text := cut(content, documents, i)
	alone, err := manifest.Split(bytes.NewReader(text), "")
	if err != nil || len(alone) != 1 || !bytes.Equal(alone[0].JSON, documents[i].JSON) {
		return documents[i].JSON
	}
	return text
}

// cut returns the lines of a file from where a document begins to where the next one does, without the markers between
// them.
func cut(content []byte, documents []manifest.Document, i int) []byte {
	lines := bytes.SplitAfter(content, []byte("\n"))
	from, to := documents[i].Line-1, len(lines)
	if i+1 < len(documents) {
		to = min(to, documents[i+1].Line-1)
	}
	if from >= to {
		return nil
	}
	marker := func(l []byte) bool { return bytes.HasPrefix(l, []byte("---")) }
	if marker(lines[from]) && len(bytes.TrimSpace(lines[from])) == 3 {
		from++
	}
	for end := from + 1; end < to; end++ {
		if marker(lines[end]) {
			to = end
		}
	}
	return bytes.Join(lines[min(from, to):to], nil)
}

func readManifest(file string, raw []byte) (Manifest, error) {
	m := Manifest{File: file, Content: raw}
	if err := json.Unmarshal(raw, &m.Object); err != nil {
		return m, err
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace   string            `json:"namespace"`
			Name        string            `json:"name"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return m, err
	}
	m.APIVersion, m.Kind = head.APIVersion, head.Kind
	m.Namespace, m.Name = head.Metadata.Namespace, head.Metadata.Name
	m.Labels, m.Annotations = head.Metadata.Labels, head.Metadata.Annotations
	return m, nil
}

// check refuses a manifest that cannot be applied.
func (m Manifest) check() error {
	switch {
	case m.APIVersion == "":
		return fmt.Errorf("%s %q: missing apiVersion", m.Kind, m.Name)
	case m.Kind == "":
		return fmt.Errorf("%q: missing kind", m.Name)
	case m.Name == "":
		return fmt.Errorf("%s: missing metadata.name", m.Kind)
	}
	for _, a := range []string{annotationDelete, annotationCreateOnly} {
		if v, ok := m.Annotations[a]; ok && v != "true" {
			return fmt.Errorf("%s %q: annotation %s must be \"true\", not %q", m.Kind, m.Name, a, v)
		}
	}
	return nil
}

// eachItem calls do for each item of a list.
func (m Manifest) eachItem(do func(Manifest)) error {
	items, ok := m.Object["items"].([]any)
	if !ok && m.Object["items"] != nil {
		return errors.New("v1 List: items must be a list")
	}
	for i, v := range items {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		item, err := readManifest(m.File, raw)
		if err == nil {
			err = item.check()
		}
		if err != nil {
			return fmt.Errorf("v1 List: items[%d]: %w", i, err)
		}
		do(item)
	}
	return nil
}

// Excluded says why a manifest is not for this kind of cluster; empty if it is. id is the identity of who asks, profile
// the cluster's profile, such as self-managed-high-availability: a manifest must name it. An empty profile takes in
// what any profile has.
func (m Manifest) Excluded(id, profile string) string {
	if id != "" && m.Annotations[annotationExclude+id] == "true" {
		return fmt.Sprintf("%s%s=true", annotationExclude, id)
	}
	if profile != "" && m.Annotations[annotationInclude+profile] != "true" {
		return fmt.Sprintf("%s%s unset", annotationInclude, profile)
	}
	if sets, ok := m.Annotations[annotationFeatureSet]; ok && !slices.Contains(strings.Split(sets, ","), "Default") {
		return fmt.Sprintf("\"Default\" is not listed in %s=%s", annotationFeatureSet, sets)
	}
	return ""
}

// Delete reports whether the object is to be deleted instead of applied.
func (m Manifest) Delete() bool { return m.Annotations[annotationDelete] == "true" }

// CreateOnly reports whether the object is made if it is not there, and never changed.
func (m Manifest) CreateOnly() bool { return m.Annotations[annotationCreateOnly] == "true" }

// Group is the API group of the object; empty for the core one.
func (m Manifest) Group() string {
	group, _, ok := strings.Cut(m.APIVersion, "/")
	if !ok {
		return ""
	}
	return group
}
