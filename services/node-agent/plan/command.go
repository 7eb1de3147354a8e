package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// ErrNoCommand means that neither the pod nor an image says what to run.
var ErrNoCommand = errors.New("no command is given, by the pod or by an image")

// Expand replaces $(NAME) by the value of a variable and $$ by $; names that are not known stay as they are. Source:
// Kubernetes' expansion of commands and variables.
func Expand(s string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			out.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && end > 0:
			if v, ok := value(s[2:end]); ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			out.WriteByte('$')
			s = s[1:]
		}
	}
}

// Command returns what a container runs: its command and arguments, or those of its image. env is the container's
// environment.
func Command(c *schedulingv1.Container, entrypoint, cmd, env []string) ([]string, error) {
	value := func(name string) (string, bool) { return lookup(env, name) }
	var out []string
	for _, w := range c.GetCommand() {
		out = append(out, Expand(w, value))
	}
	if len(out) == 0 {
		out = slices.Clone(entrypoint)
	}
	for _, w := range c.GetArgs() {
		out = append(out, Expand(w, value))
	}
	if len(c.GetCommand()) == 0 && len(c.GetArgs()) == 0 {
		out = append(out, cmd...)
	}
	if len(out) == 0 {
		return nil, ErrNoCommand
	}
	return out, nil
}

func lookup(env []string, name string) (string, bool) {
	for _, e := range slices.Backward(env) {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// Environment returns the environment of a container: base first, then what the container says. The error names a field
// of the pod that does not exist, or wraps ErrMissing.
func Environment(pod *schedulingv1.Pod, c *schedulingv1.Container, host, address string, base []string,
	objects Objects,
) ([]string, error) {
	env := slices.Clone(base)
	from, err := imported(c, objects)
	if err != nil {
		return nil, err
	}
	env = append(env, from...)
	for _, e := range c.GetEnv() {
		f := e.GetValueFrom()
		switch {
		case f.GetFieldRef() != nil:
			v, err := field(pod, host, address, f.GetFieldRef().GetFieldPath())
			if err != nil {
				return nil, fmt.Errorf("variable %q: %w", e.GetName(), err)
			}
			env = append(env, e.GetName()+"="+v)
		case f == nil:
			v := Expand(e.GetValue(), func(name string) (string, bool) { return lookup(env, name) })
			env = append(env, e.GetName()+"="+v)
		default:
			v, err := referred(pod, c, e, objects)
			if err != nil {
				return nil, err
			}
			if v != "" {
				env = append(env, v)
			}
		}
	}
	return env, nil
}

// field returns a field of a pod by its path.
func field(pod *schedulingv1.Pod, host, address, path string) (string, error) {
	m, spec := pod.GetMetadata(), pod.GetSpec()
	for prefix, of := range map[string]map[string]string{
		"metadata.labels['":      m.GetLabels(),
		"metadata.annotations['": m.GetAnnotations(),
	} {
		if key, ok := strings.CutPrefix(path, prefix); ok && strings.HasSuffix(key, "']") {
			return of[strings.TrimSuffix(key, "']")], nil
		}
	}
	switch path {
	case "metadata.name":
		return m.GetName(), nil
	case "metadata.namespace":
		return m.GetNamespace(), nil
	case "metadata.uid":
		return m.GetUid(), nil
	case "spec.nodeName":
		return spec.GetNodeName(), nil
	case "spec.serviceAccountName":
		return spec.GetServiceAccountName(), nil
	case "status.podIP", "status.podIPs":
		return address, nil
	case "status.hostIP", "status.hostIPs":
		return host, nil
	}
	return "", fmt.Errorf("a pod has no field %q that a variable can have", path)
}

// VolumeVariable returns the name of the variable that says where a volume is.
func VolumeVariable(volume string) string {
	return "WINDLASS_VOLUME_" + strings.ToUpper(strings.ReplaceAll(volume, "-", "_"))
}

// OnlyReads reports whether a pod uses a volume, which is a claim, for reading only.
func OnlyReads(pod *schedulingv1.Pod, volume string) bool {
	return slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
		return v.GetName() == volume && v.GetPersistentVolumeClaim().GetReadOnly()
	})
}

// SubPath returns what of a volume a container mounts; empty: all. env is the container's environment without the
// variables of volumes.
func SubPath(m *schedulingv1.VolumeMount, env []string) (string, error) {
	if m.GetSubPathExpr() == "" {
		return m.GetSubPath(), nil
	}
	var missing []string
	sub := Expand(m.GetSubPathExpr(), func(name string) (string, bool) {
		v, ok := lookup(env, name)
		if !ok {
			missing = append(missing, name)
		}
		return v, ok
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("subPathExpr %q of volume %q: no variable %s", m.GetSubPathExpr(), m.GetName(),
			strings.Join(missing, ", "))
	}
	return sub, nil
}
