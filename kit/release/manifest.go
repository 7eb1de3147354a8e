package release

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/windlass-dev/windlass/kit/manifest"
)

// Annotations of manifests. IncludeAnnotation, and the name of a profile after it, takes a manifest in for clusters of
// that profile if it is "true".
const IncludeAnnotation = "include.release.openshift.io/"

const (
	annotationExclude     = "exclude.release.openshift.io/" // and an identity: "true" leaves the manifest out for it
	annotationFeatureSet  = "release.openshift.io/feature-set"
	annotationFeatureGate = "release.openshift.io/feature-gate"
	annotationCapability  = "capability.openshift.io/name" // names, separated by "+"
	annotationMajor       = "release.openshift.io/major-version"
	annotationDelete      = "release.openshift.io/delete"
	annotationCreateOnly  = "release.openshift.io/create-only"
)

// What a cluster is unless it says otherwise.
const (
	DefaultProfile    = "self-managed-high-availability"
	DefaultFeatureSet = "Default"
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
	lines := bytes.SplitAfter(f.Content, []byte("\n"))
	for i, d := range documents {
		m, err := readManifest(f.Name, d.JSON)
		switch {
		case err != nil:
		case m.Kind == "List" && m.APIVersion == "v1":
			err = m.eachItem(func(item Manifest) { out = append(out, item) })
		default:
			m.Content = verbatim(f.Content, lines, documents, i)
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
func verbatim(content []byte, lines [][]byte, documents []manifest.Document, i int) []byte {
	if len(documents) == 1 {
		return content
	}
	text := cut(lines, documents, i)
	alone, err := manifest.Split(bytes.NewReader(text), "")
	if err != nil || len(alone) != 1 || !bytes.Equal(alone[0].JSON, documents[i].JSON) {
		return documents[i].JSON
	}
	return text
}

// cut returns the lines of a file from where a document begins to where the next one does, without the markers between
// them.
func cut(lines [][]byte, documents []manifest.Document, i int) []byte {
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
	return m.checkJob()
}

// minJobTTL is how long a Job stays at least after its end, in seconds.
const minJobTTL = 60

// checkJob refuses a Job that may be removed before an update has seen how it ended: it would run twice.
func (m Manifest) checkJob() error {
	if m.Kind != "Job" || m.Group() != "batch" || m.Delete() {
		return nil
	}
	spec, _ := m.Object["spec"].(map[string]any)
	if ttl, ok := spec["ttlSecondsAfterFinished"].(int64); ok && ttl < minJobTTL {
		return fmt.Errorf("%s %q: spec.ttlSecondsAfterFinished must be %d or more: it may run again if it is removed before "+
			"the update has seen how it ended", m.Kind, m.Name, minJobTTL)
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

// Cluster is what decides which manifests are for a cluster.
type Cluster struct {
	ID         string // identity of who asks, by which manifests are left out; may be empty
	Profile    string // a manifest must name it; empty takes in what any profile has
	FeatureSet string // such as Default: a manifest that names sets must name it
}

// Selection says which manifests of a payload are for a cluster.
type Selection struct {
	cluster Cluster
	gates   map[string]bool // feature gates that are on
	major   string          // version of the release
}

// Select returns which manifests of a payload are for a cluster. Feature gates are on if the payload's own FeatureGate
// of the cluster's feature set has them on.
func (p *Payload) Select(c Cluster) Selection {
	s := Selection{cluster: c, gates: map[string]bool{}}
	s.major, _, _ = strings.Cut(p.Metadata.Version, ".")
	for _, m := range p.Manifests {
		if m.Kind == "FeatureGate" && m.Group() == "config.openshift.io" && s.Excluded(m) == "" {
			for name := range m.gatesOn(p.Metadata.Version) {
				s.gates[name] = true
			}
		}
	}
	return s
}

// gatesOn returns the feature gates that a FeatureGate says to be on in a version.
func (m Manifest) gatesOn(of string) iter.Seq[string] {
	return func(yield func(string) bool) {
		versions, _, _ := unstructured.NestedSlice(m.Object, "status", "featureGates")
		for _, v := range versions {
			version, _ := v.(map[string]any)
			if name, _ := version["version"].(string); name != "" && name != of {
				continue
			}
			gates, _, _ := unstructured.NestedSlice(version, "enabled")
			for _, g := range gates {
				gate, _ := g.(map[string]any)
				if name, _ := gate["name"].(string); name != "" && !yield(name) {
					return
				}
			}
		}
	}
}

// Excluded says why a manifest is not for the cluster; empty if it is. Source: the Cluster Version Operator's filters
// of manifests.
func (s Selection) Excluded(m Manifest) string {
	c := s.cluster
	if c.ID != "" && m.Annotations[annotationExclude+c.ID] == "true" {
		return fmt.Sprintf("%s%s=true", annotationExclude, c.ID)
	}
	if c.Profile != "" && m.Annotations[IncludeAnnotation+c.Profile] != "true" {
		return fmt.Sprintf("%s%s unset", IncludeAnnotation, c.Profile)
	}
	if sets, ok := m.Annotations[annotationFeatureSet]; ok && !slices.Contains(words(sets), c.FeatureSet) {
		return fmt.Sprintf("%q is not listed in %s=%s", c.FeatureSet, annotationFeatureSet, sets)
	}
	if gates, ok := m.Annotations[annotationFeatureGate]; ok {
		for _, gate := range words(gates) {
			name, off := strings.CutPrefix(gate, "-")
			switch on := s.gates[name]; {
			case on && off:
				return fmt.Sprintf("feature gate %s is on, and %s=%s", name, annotationFeatureGate, gates)
			case !on && !off:
				return fmt.Sprintf("feature gate %s is off, and %s=%s", name, annotationFeatureGate, gates)
			}
		}
	}
	if majors, ok := m.Annotations[annotationMajor]; ok && !forMajor(words(majors), s.major) {
		return fmt.Sprintf("%q does not fit %s=%s", s.major, annotationMajor, majors)
	}
	return ""
}

// forMajor reports whether a list of major versions, of which "-5" leaves out 5, takes in a version.
func forMajor(list []string, major string) bool {
	some := false
	for _, v := range list {
		if strings.TrimPrefix(v, "-") == major {
			return v == major
		}
		some = some || !strings.HasPrefix(v, "-")
	}
	return !some
}

// words returns the parts of a list that commas separate, without empty ones.
func words(list string) (out []string) {
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// Capabilities returns the capabilities that must be enabled for the object; most need none.
func (m Manifest) Capabilities() []string {
	return strings.FieldsFunc(m.Annotations[annotationCapability], func(r rune) bool { return r == '+' })
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
