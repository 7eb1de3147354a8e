package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/podconfig"
)

// ErrMissing means that a config map or a secret, or a key of it, does not exist that a container needs.
var ErrMissing = errors.New("missing")

// Objects are the config maps and secrets of a pod that exist, by name, and its tokens.
type Objects struct {
	ConfigMaps map[string]*schedulingv1.ConfigMap
	Secrets    map[string]*schedulingv1.Secret
	Tokens     map[podconfig.Token]string
}

// NewObjects returns the objects of a response.
func NewObjects(configMaps []*schedulingv1.ConfigMap, secrets []*schedulingv1.Secret) Objects {
	o := Objects{ConfigMaps: map[string]*schedulingv1.ConfigMap{}, Secrets: map[string]*schedulingv1.Secret{}}
	for _, m := range configMaps {
		o.ConfigMaps[m.GetMetadata().GetName()] = m
	}
	for _, s := range secrets {
		o.Secrets[s.GetMetadata().GetName()] = s
	}
	return o
}

// data returns the keys and values of an object; nil without error if it does not exist and is optional.
func (o Objects) data(r podconfig.Ref) (map[string][]byte, error) {
	if r.Secret {
		if s := o.Secrets[r.Name]; s != nil {
			return s.GetData(), nil
		}
	} else if m := o.ConfigMaps[r.Name]; m != nil {
		out := maps.Clone(m.GetBinaryData())
		if out == nil {
			out = map[string][]byte{}
		}
		for k, v := range m.GetData() {
			out[k] = []byte(v)
		}
		return out, nil
	}
	if r.Optional {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: %s not found", ErrMissing, r)
}

// key returns the value of a key; false without error if it does not exist and is optional.
func (o Objects) key(r podconfig.KeyRef) ([]byte, bool, error) {
	data, err := o.data(r.Ref)
	if err != nil {
		return nil, false, err
	}
	v, ok := data[r.Key]
	if !ok && !r.Optional {
		return nil, false, fmt.Errorf("%w: %s has no key %q", ErrMissing, r.Ref, r.Key)
	}
	return v, ok, nil
}

// imported returns the variables of envFrom. Where several have one, the last counts.
func imported(c *schedulingv1.Container, objects Objects) (env []string, err error) {
	list, faults := podconfig.EnvFromOf(c)
	if len(faults) > 0 {
		return nil, errors.New(faults[0].String())
	}
	for _, from := range list {
		data, err := objects.data(from.Ref)
		if err != nil {
			return nil, err
		}
		for _, k := range slices.Sorted(maps.Keys(data)) {
			v, err := variable(from.Prefix+k, data[k])
			if err != nil {
				return nil, err
			}
			env = append(env, v)
		}
	}
	return env, nil
}

// referred returns the variable of a key or a resource, "" if there is none.
func referred(pod *schedulingv1.Pod, c *schedulingv1.Container, e *schedulingv1.EnvVar, objects Objects) (string,
	error,
) {
	of, faults := podconfig.ValueOf(e.GetValueFrom())
	switch {
	case len(faults) > 0:
		return "", errors.New(faults[0].String())
	case of.Key != nil:
		v, ok, err := objects.key(*of.Key)
		if err != nil || !ok {
			return "", err
		}
		return variable(e.GetName(), v)
	case of.Resource != nil:
		v, err := of.Resource.Text(pod.GetSpec(), c)
		return e.GetName() + "=" + v, err
	}
	return "", nil
}

// variable returns a variable of a process. Its error does not contain the value.
func variable(name string, value []byte) (string, error) {
	if strings.ContainsRune(string(value), 0) {
		return "", fmt.Errorf("variable %q: the value has a zero byte", name)
	}
	return name + "=" + string(value), nil
}

// File is one file of a volume.
type File struct {
	Data []byte
	Mode uint32
}

// Files returns the files of a volume by their paths. The error wraps ErrMissing if what they are made of does not
// exist.
func Files(pod *schedulingv1.Pod, v podconfig.Volume, objects Objects) (map[string]File, error) {
	out := map[string]File{}
	for _, s := range v.Sources {
		if err := addSource(out, pod, v.Mode, s, objects); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func addSource(out map[string]File, pod *schedulingv1.Pod, mode uint32, s podconfig.Source, objects Objects) error {
	if s.Ref.Name != "" && len(s.Files) == 0 {
		data, err := objects.data(s.Ref)
		for k, v := range data {
			out[k] = File{Data: v, Mode: mode}
		}
		return err
	}
	for _, f := range s.Files {
		file := File{Mode: mode}
		if f.Mode != 0 {
			file.Mode = f.Mode
		}
		var err error
		there := true
		switch {
		case s.Ref.Name != "":
			file.Data, there, err = objects.key(podconfig.KeyRef{Ref: s.Ref, Key: f.Key})
		case f.Resource != nil:
			var text string
			text, err = f.Resource.Text(pod.GetSpec(), nil)
			file.Data = []byte(text)
		case f.Token != nil:
			file.Data = []byte(objects.Tokens[*f.Token])
			if len(file.Data) == 0 {
				err = fmt.Errorf("%w: the token of the service account for audience %q", ErrMissing, f.Token.Audience)
			}
		default:
			file.Data, err = podField(pod, f.Field)
		}
		if err != nil {
			return err
		}
		if there {
			out[f.Path] = file
		}
	}
	return nil
}

// podField returns a field of a pod as a file has it: labels and annotations as lines KEY="VALUE".
func podField(pod *schedulingv1.Pod, path string) ([]byte, error) {
	m := pod.GetMetadata()
	switch path {
	case "metadata.labels":
		return lines(m.GetLabels()), nil
	case "metadata.annotations":
		return lines(m.GetAnnotations()), nil
	}
	v, err := field(pod, "", "", path)
	return []byte(v), err
}

func lines(m map[string]string) []byte {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%q", k, m[k]))
	}
	return []byte(strings.Join(out, "\n"))
}
