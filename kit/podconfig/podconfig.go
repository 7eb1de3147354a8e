// Package podconfig reads the fields of a pod that refer to config maps, secrets and the pod itself: env.valueFrom,
// envFrom, and the volumes configMap, secret, projected and downwardAPI. The scheduler checks them and answers an agent
// with the objects that a pod refers to; the agent makes variables and files of them. It does no I/O.
package podconfig

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/untyped"
)

// defaultMode is that of files without a mode.
const defaultMode = 0o644

const maxMode = 0o777

// Ref names a config map or a secret in the pod's namespace.
type Ref struct {
	Secret   bool // a secret, else a config map
	Name     string
	Optional bool // the pod starts without it
}

// String returns the kind and the name, as messages have them.
func (r Ref) String() string {
	if r.Secret {
		return fmt.Sprintf("secret %q", r.Name)
	}
	return fmt.Sprintf("configmap %q", r.Name)
}

// KeyRef names one key of a config map or a secret.
type KeyRef struct {
	Ref
	Key string
}

// EnvFrom makes a variable of each key of an object.
type EnvFrom struct {
	Ref
	Prefix string
}

// File is one file of a source: a key, a field of the pod, a resource of a container, or a token.
type File struct {
	Path string // relative, local to the volume
	Mode uint32 // 0: that of the volume
	Key  string
	// Field is a path such as metadata.labels.
	Field    string
	Resource *Resource
	Token    *Token
}

// Token is a token of the pod's service account.
type Token struct {
	Audience string // empty: the cluster's own API
	Seconds  int    // lifetime; 0: the default
}

// Bounds of tokens.
const (
	minTokenSeconds = 600
	maxTokenSeconds = 86400 // a longer lifetime is cut to it
	maxAudience     = 256
	maxTokens       = 8 // of a pod: each is asked for again and again
)

// Source is one source of a volume: an object, or the pod itself.
type Source struct {
	Ref   Ref    // empty: the pod itself
	Files []File // of an object without any: a file for each of its keys
}

// Volume is what the files of a volume are made of. A later source replaces the files of an earlier one.
type Volume struct {
	Mode    uint32
	Sources []Source
}

// Resource is a request or a limit of a container.
type Resource struct {
	Container string // empty: the container that has the variable
	Limit     bool   // of the limits, else of the requests
	Name      string // cpu, memory or ephemeral-storage
	Divisor   string // quantity; empty: 1
}

// reader reads what a pod says of config maps, secrets and its own fields.
type reader struct{ untyped.Reader }

// mode returns 0 if there is none.
func (r *reader) mode(at string, s *structpb.Struct, name string) uint32 {
	v, ok := s.GetFields()[name]
	if !ok {
		return 0
	}
	n := v.GetNumberValue()
	if _, ok := v.GetKind().(*structpb.Value_NumberValue); !ok || n < 0 || n > maxMode || n != float64(uint32(n)) {
		r.Fault(at+"."+name, "must be a number from 0 to 0777 (511)")
		return 0
	}
	return uint32(n)
}

func (r *reader) ref(at string, s *structpb.Struct, secret bool, name string) Ref {
	out := Ref{Secret: secret, Name: r.Text(at, s, name), Optional: r.Flag(at, s, "optional")}
	if msgs := validation.IsDNS1123Subdomain(out.Name); len(msgs) > 0 {
		r.Fault(at+"."+name, "must be the name of an object: %s", msgs[0])
	}
	return out
}

func (r *reader) key(at, name, key string) {
	for _, why := range validation.IsConfigMapKey(key) {
		r.Fault(at+"."+name, "invalid key: %s", why)
	}
}

func (r *reader) keyRef(at string, s *structpb.Struct, secret bool) KeyRef {
	r.Only(at, s, "name", "key", "optional")
	out := KeyRef{Ref: r.ref(at, s, secret, "name"), Key: r.Text(at, s, "key")}
	r.key(at, "key", out.Key)
	return out
}

var resourceNames = []string{"cpu", "memory", "ephemeral-storage"}

func (r *reader) resource(at string, s *structpb.Struct) Resource {
	r.Only(at, s, "containerName", "resource", "divisor")
	out := Resource{Container: r.Text(at, s, "containerName")}
	list, name, _ := strings.Cut(r.Text(at, s, "resource"), ".")
	if list != "requests" && list != "limits" || !slices.Contains(resourceNames, name) {
		r.Fault(at+".resource", "must be requests. or limits. with cpu, memory or ephemeral-storage")
	}
	out.Limit, out.Name = list == "limits", name
	switch v := s.GetFields()["divisor"]; v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		out.Divisor = fmt.Sprint(v.GetNumberValue())
	default:
		out.Divisor = v.GetStringValue()
	}
	if _, err := out.divisor(); err != nil {
		r.Fault(at+".divisor", "must be a quantity above 0")
	}
	return out
}

// volumeField are the fields of a pod that a file can have.
var volumeField = regexp.MustCompile(
	`^metadata\.(name|namespace|uid|labels|annotations|(labels|annotations)\['[^']+'\])$`)

// filePath checks the path of a file, which must stay in the volume. Names that begin with ".." are the agent's.
func (r *reader) filePath(at, p string) string {
	switch {
	case p == "":
		r.Fault(at+".path", "must be given")
	case path.IsAbs(p) || path.Clean(p) != p || p == ".":
		r.Fault(at+".path", "must be a relative path without . and empty parts")
	case slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool { return part == ".." }) ||
		strings.HasPrefix(p, ".."):
		r.Fault(at+".path", `must not contain ".." or begin with it`)
	case strings.ContainsRune(p, 0):
		r.Fault(at+".path", "must not contain a zero byte")
	}
	return p
}

// object reads a source that is an object; name is the field with its name.
func (r *reader) object(at string, s *structpb.Struct, secret bool, name string, more ...string) Source {
	r.Only(at, s, append(more, name, "items", "optional")...)
	out := Source{Ref: r.ref(at, s, secret, name)}
	for i, item := range r.Objects(at, s, "items") {
		at := fmt.Sprintf("%s.items[%d]", at, i)
		r.Only(at, item, "key", "path", "mode")
		f := File{
			Key: r.Text(at, item, "key"), Path: r.filePath(at, r.Text(at, item, "path")),
			Mode: r.mode(at, item, "mode"),
		}
		r.key(at, "key", f.Key)
		out.Files = append(out.Files, f)
	}
	return out
}

// downward reads a source that is the pod itself.
func (r *reader) downward(at string, s *structpb.Struct, more ...string) (out Source) {
	r.Only(at, s, append(more, "items")...)
	for i, item := range r.Objects(at, s, "items") {
		at := fmt.Sprintf("%s.items[%d]", at, i)
		r.Only(at, item, "path", "mode", "fieldRef", "resourceFieldRef")
		f := File{Path: r.filePath(at, r.Text(at, item, "path")), Mode: r.mode(at, item, "mode")}
		field, res := item.GetFields()["fieldRef"].GetStructValue(), item.GetFields()["resourceFieldRef"].GetStructValue()
		switch {
		case (field == nil) == (res == nil):
			r.Fault(at, "must have either fieldRef or resourceFieldRef")
		case field != nil:
			r.Only(at+".fieldRef", field, "apiVersion", "fieldPath")
			if f.Field = r.Text(at+".fieldRef", field, "fieldPath"); !volumeField.MatchString(f.Field) {
				r.Fault(at+".fieldRef.fieldPath",
					"must be metadata.name, namespace, uid, labels or annotations, or labels['KEY'] or annotations['KEY']")
			}
		default:
			of := r.resource(at+".resourceFieldRef", res)
			if f.Resource = &of; of.Container == "" {
				r.Fault(at+".resourceFieldRef.containerName", "must be given")
			}
		}
		out.Files = append(out.Files, f)
	}
	return out
}

func (r *reader) volume(at string, v *schedulingv1.Volume) (out Volume, ok bool) {
	source := func(name string, s *structpb.Struct, read func(at string) []Source) {
		if s == nil {
			return
		}
		if ok {
			r.Fault(at+"."+name, "a volume has one source")
		}
		ok, out.Mode = true, r.mode(at+"."+name, s, "defaultMode")
		out.Sources = read(at + "." + name)
	}
	source("configMap", v.GetConfigMap(), func(at string) []Source {
		return []Source{r.object(at, v.GetConfigMap(), false, "name", "defaultMode")}
	})
	source("secret", v.GetSecret(), func(at string) []Source {
		return []Source{r.object(at, v.GetSecret(), true, "secretName", "defaultMode")}
	})
	source("downwardAPI", v.GetDownwardApi(), func(at string) []Source {
		return []Source{r.downward(at, v.GetDownwardApi(), "defaultMode")}
	})
	source("projected", v.GetProjected(), func(at string) []Source { return r.projected(at, v.GetProjected()) })
	return out, ok
}

func (r *reader) projected(at string, s *structpb.Struct) (out []Source) {
	r.Only(at, s, "sources", "defaultMode")
	for i, one := range r.Objects(at, s, "sources") {
		at := fmt.Sprintf("%s.sources[%d]", at, i)
		if len(one.GetFields()) != 1 {
			r.Fault(at, "must have one source")
		}
		for name, v := range one.GetFields() {
			of := v.GetStructValue()
			switch name {
			case "configMap", "secret":
				out = append(out, r.object(at+"."+name, of, name == "secret", "name"))
			case "downwardAPI":
				out = append(out, r.downward(at+"."+name, of))
			case "serviceAccountToken":
				out = append(out, r.token(at+"."+name, of))
			default:
				r.Fault(at+"."+name, "is not in force yet, or unknown")
			}
		}
	}
	return out
}

// token reads a source that is a token of the pod's service account.
func (r *reader) token(at string, s *structpb.Struct) Source {
	r.Only(at, s, "audience", "expirationSeconds", "path")
	t := &Token{Audience: r.Text(at, s, "audience")}
	if len(t.Audience) > maxAudience || strings.ContainsFunc(t.Audience, func(c rune) bool { return c < '!' || c > '~' }) {
		r.Fault(at+".audience", "must have at most %d printable ASCII characters and no space", maxAudience)
	}
	if n, ok := r.Number(at, s, "expirationSeconds", minTokenSeconds); ok {
		t.Seconds = min(n, maxTokenSeconds)
	}
	return Source{Files: []File{{Path: r.filePath(at, r.Text(at, s, "path")), Token: t}}}
}

// Tokens returns the different tokens that the volumes of a spec have, in their order.
func Tokens(spec *schedulingv1.PodSpec) (out []Token) {
	r := &reader{}
	for _, v := range spec.GetVolumes() {
		volume, _ := r.volume("", v)
		for _, s := range volume.Sources {
			for _, f := range s.Files {
				if f.Token != nil && !slices.Contains(out, *f.Token) {
					out = append(out, *f.Token)
				}
			}
		}
	}
	return out
}

// VolumeOf returns what the files of a volume are made of; false if it is a volume of another type. A pod that passed
// Check has no fault here; of one that did not, the faults are returned.
func VolumeOf(v *schedulingv1.Volume) (Volume, bool, []object.Fault) {
	r := &reader{}
	out, ok := r.volume("volume", v)
	if out.Mode == 0 {
		out.Mode = defaultMode
	}
	return out, ok, r.Faults
}

// EnvFromOf returns what the variables of envFrom are made of.
func EnvFromOf(c *schedulingv1.Container) ([]EnvFrom, []object.Fault) {
	r := &reader{}
	return r.envFrom("envFrom", c), r.Faults
}

func (r *reader) envFrom(at string, c *schedulingv1.Container) (out []EnvFrom) {
	for i, s := range c.GetEnvFrom() {
		at := fmt.Sprintf("%s[%d]", at, i)
		r.Only(at, s, "prefix", "configMapRef", "secretRef")
		m, secret := s.GetFields()["configMapRef"].GetStructValue(), s.GetFields()["secretRef"].GetStructValue()
		e := EnvFrom{Prefix: r.Text(at, s, "prefix")}
		switch {
		case (m == nil) == (secret == nil):
			r.Fault(at, "must have either configMapRef or secretRef")
			continue
		case m != nil:
			r.Only(at+".configMapRef", m, "name", "optional")
			e.Ref = r.ref(at+".configMapRef", m, false, "name")
		default:
			r.Only(at+".secretRef", secret, "name", "optional")
			e.Ref = r.ref(at+".secretRef", secret, true, "name")
		}
		out = append(out, e)
	}
	return out
}

// Value is the source of a variable: one of its fields is set.
type Value struct {
	Key      *KeyRef
	Resource *Resource
}

// ValueOf returns the source of a variable; both fields are nil if it is another one.
func ValueOf(from *schedulingv1.EnvVarSource) (Value, []object.Fault) {
	r := &reader{}
	return r.value("valueFrom", from), r.Faults
}

func (r *reader) value(at string, from *schedulingv1.EnvVarSource) (out Value) {
	count := 0
	if from.GetFieldRef() != nil {
		count++
	}
	if s := from.GetConfigMapKeyRef(); s != nil {
		k := r.keyRef(at+".configMapKeyRef", s, false)
		out.Key, count = &k, count+1
	}
	if s := from.GetSecretKeyRef(); s != nil {
		k := r.keyRef(at+".secretKeyRef", s, true)
		out.Key, count = &k, count+1
	}
	if s := from.GetResourceFieldRef(); s != nil {
		of := r.resource(at+".resourceFieldRef", s)
		out.Resource, count = &of, count+1
	}
	if count > 1 {
		r.Fault(at, "must have one source")
	}
	return out
}

func containers(spec *schedulingv1.PodSpec) map[string][]*schedulingv1.Container {
	return map[string][]*schedulingv1.Container{
		"initContainers": spec.GetInitContainers(), "containers": spec.GetContainers(),
	}
}

// Check returns what is wrong with the references of a spec at path, and what is not in force.
func Check(at string, spec *schedulingv1.PodSpec) []object.Fault {
	r := &reader{}
	for _, list := range []string{"initContainers", "containers"} {
		for i, c := range containers(spec)[list] {
			at := fmt.Sprintf("%s.%s[%d]", at, list, i)
			r.envFrom(at+".envFrom", c)
			for j, e := range c.GetEnv() {
				at := fmt.Sprintf("%s.env[%d]", at, j)
				if e.GetValueFrom() == nil {
					continue
				}
				v := r.value(at+".valueFrom", e.GetValueFrom())
				r.known(at+".valueFrom.resourceFieldRef", spec, c, v.Resource)
			}
		}
	}
	for i, v := range spec.GetVolumes() {
		at := fmt.Sprintf("%s.volumes[%d]", at, i)
		if m := v.GetEmptyDir().GetMedium(); m != "" && m != "Memory" {
			r.Fault(at+".emptyDir.medium", "is not in force yet: the node has only its disk and memory")
		}
		volume, _ := r.volume(at, v)
		for _, s := range volume.Sources {
			for _, f := range s.Files {
				r.known(at+" "+f.Path, spec, nil, f.Resource)
			}
		}
	}
	if n := len(Tokens(spec)); n > maxTokens {
		r.Fault(at+".volumes", "have %d different tokens of the service account: up to %d", n, maxTokens)
	}
	for i, s := range spec.GetImagePullSecrets() {
		at := fmt.Sprintf("%s.imagePullSecrets[%d]", at, i)
		r.Only(at, s, "name")
		r.ref(at, s, true, "name")
	}
	for _, list := range []string{"initContainers", "containers"} {
		for i, c := range containers(spec)[list] {
			for j, m := range c.GetVolumeMounts() {
				if m.GetSubPath() != "" && m.GetSubPathExpr() != "" {
					r.Fault(fmt.Sprintf("%s.%s[%d].volumeMounts[%d].subPathExpr", at, list, i, j), "must not be set beside subPath")
				}
			}
			if p := c.GetImagePullPolicy(); p != "" && !slices.Contains(pullPolicies, p) {
				r.Fault(fmt.Sprintf("%s.%s[%d].imagePullPolicy", at, list, i), "must be %s", strings.Join(pullPolicies, ", "))
			}
		}
	}
	return r.Faults
}

// pullPolicies are the values of imagePullPolicy.
var pullPolicies = []string{"Always", "IfNotPresent", "Never"}

// known refuses a resource without a value: one of a container that the pod does not have, or a limit that is not set.
// What Kubernetes takes instead, all that the node has, is not known here.
func (r *reader) known(at string, spec *schedulingv1.PodSpec, c *schedulingv1.Container, of *Resource) {
	if of == nil || of.Name == "" {
		return
	}
	if of.Container != "" {
		if c = find(spec, of.Container); c == nil {
			r.Fault(at, "the pod has no container %q", of.Container)
			return
		}
	}
	if of.Limit && c.GetResources().GetLimits()[of.Name] == nil {
		r.Fault(at, "the container has no limit of %s", of.Name)
	}
}

func find(spec *schedulingv1.PodSpec, name string) *schedulingv1.Container {
	for _, list := range containers(spec) {
		for _, c := range list {
			if c.GetName() == name {
				return c
			}
		}
	}
	return nil
}

// References returns the names of the config maps and secrets that a pod refers to, ordered. A node's agent may read
// these.
func References(spec *schedulingv1.PodSpec) (configMaps, secrets []string) {
	names := map[bool]map[string]bool{false: {}, true: {}}
	note := func(r Ref) {
		if r.Name != "" {
			names[r.Secret][r.Name] = true
		}
	}
	r := &reader{}
	for _, list := range containers(spec) {
		for _, c := range list {
			for _, e := range r.envFrom("", c) {
				note(e.Ref)
			}
			for _, e := range c.GetEnv() {
				if v := r.value("", e.GetValueFrom()); v.Key != nil {
					note(v.Key.Ref)
				}
			}
		}
	}
	for _, v := range spec.GetVolumes() {
		volume, _ := r.volume("", v)
		for _, s := range volume.Sources {
			note(s.Ref)
		}
	}
	for _, s := range spec.GetImagePullSecrets() {
		note(Ref{Secret: true, Name: r.Text("", s, "name")})
	}
	return slices.Sorted(maps.Keys(names[false])), slices.Sorted(maps.Keys(names[true]))
}
