package objects

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// sources are the flags that give the data of a config map or a secret, as kubectl has them.
type sources struct {
	literals, files, envFiles []string
}

func (s *sources) addFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&s.literals, "from-literal", nil, "KEY=VALUE; may be repeated")
	fs.StringSliceVar(&s.files, "from-file", nil,
		"[KEY=]FILE, the key is the name of the file if none is given, or a directory, whose files each make a key; may be repeated")
	fs.StringSliceVar(&s.envFiles, "from-env-file", nil, "file with lines KEY=VALUE; may be repeated")
}

// read returns the data of all flags. Errors name keys and files, never values.
func (s *sources) read() (map[string][]byte, error) {
	out := map[string][]byte{}
	if len(s.envFiles) > 0 && len(s.files)+len(s.literals) > 0 {
		return nil, errors.New("from-env-file cannot be combined with from-file or from-literal")
	}
	for i, l := range s.literals {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--from-literal number %d must be KEY=VALUE", i+1)
		}
		if err := add(out, k, []byte(v)); err != nil {
			return nil, err
		}
	}
	for _, f := range s.files {
		if err := addPath(out, f); err != nil {
			return nil, err
		}
	}
	for _, f := range s.envFiles {
		if err := addLines(out, f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func add(data map[string][]byte, key string, value []byte) error {
	if msgs := validation.IsConfigMapKey(key); len(msgs) > 0 {
		return fmt.Errorf("%q is not a valid key name: %s", key, strings.Join(msgs, "; "))
	}
	if _, ok := data[key]; ok {
		return fmt.Errorf("cannot add key %q: it was given before", key)
	}
	data[key] = value
	return nil
}

// addPath adds what --from-file names.
func addPath(data map[string][]byte, arg string) error {
	key, name, given := strings.Cut(arg, "=")
	if !given {
		name, key = arg, filepath.Base(arg)
	}
	if key == "" || name == "" {
		return fmt.Errorf("--from-file %q must be [KEY=]FILE", arg)
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return addFile(data, key, name)
	}
	if given {
		return fmt.Errorf("--from-file %q: a key cannot be given for a directory", arg)
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue // as kubectl: no links, no directories
		}
		if err := addFile(data, e.Name(), filepath.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func addFile(data map[string][]byte, key, name string) error {
	value, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return add(data, key, value)
}

// addLines adds the lines of a file of variables. Empty lines and those that begin with # are skipped; a line with a
// key alone takes the value of the variable of this process.
func addLines(data map[string][]byte, name string) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if !utf8.Valid(raw) {
		return fmt.Errorf("%s is not UTF-8", name)
	}
	text := strings.TrimPrefix(string(raw), "\ufeff")
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if msgs := validation.IsEnvVarName(k); len(msgs) > 0 {
			return fmt.Errorf("%s:%d: not a valid key name: %s", name, i+1, strings.Join(msgs, "; "))
		}
		if !ok {
			v = os.Getenv(k)
		}
		if err := add(data, k, []byte(v)); err != nil {
			return fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
	}
	return nil
}

func newCreateConfigMap(e *session.Env) *cobra.Command {
	var w change.Flags
	var s sources
	cmd := &cobra.Command{
		Use:     "configmap NAME [--from-literal=KEY=VALUE] [--from-file=[KEY=]FILE] [--from-env-file=FILE]",
		Aliases: []string{"cm"},
		Short:   "Create a config map from values, files or directories",
		Example: `  windlass create configmap settings --from-literal=level=debug --from-file=app.conf
  windlass create configmap settings --from-env-file=app.env --dry-run=client -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := s.read()
			if err != nil {
				return err
			}
			m := &schedulingv1.ConfigMap{ApiVersion: "v1", Kind: "ConfigMap", Metadata: named(e, args[0])}
			for _, k := range slices.Sorted(maps.Keys(data)) {
				if utf8.Valid(data[k]) {
					setIn(&m.Data, k, string(data[k]))
				} else {
					setIn(&m.BinaryData, k, data[k])
				}
			}
			return createOne(cmd.Context(), e, m, &w)
		},
	}
	s.addFlags(cmd.Flags())
	w.AddFlags(cmd.Flags())
	return cmd
}

func setIn[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

func newCreateSecret(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Create a secret"}
	cmd.AddCommand(newCreateGeneric(e), newCreateTLS(e))
	return cmd
}

func newCreateGeneric(e *session.Env) *cobra.Command {
	var w change.Flags
	var s sources
	var typ string
	cmd := &cobra.Command{
		Use:   "generic NAME [--from-literal=KEY=VALUE] [--from-file=[KEY=]FILE] [--from-env-file=FILE] [--type=TYPE]",
		Short: "Create a secret from values, files or directories; values on the command line are visible to other processes",
		Example: `  windlass create secret generic login --from-literal=user=app --from-file=password=./password.txt
  windlass create secret generic pull --type=kubernetes.io/dockerconfigjson --from-file=.dockerconfigjson=config.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := s.read()
			if err != nil {
				return err
			}
			return createOne(cmd.Context(), e, newSecret(e, args[0], typ, data), &w)
		},
	}
	s.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&typ, "type", "", "type of the secret (default Opaque)")
	w.AddFlags(cmd.Flags())
	return cmd
}

func newCreateTLS(e *session.Env) *cobra.Command {
	var w change.Flags
	var cert, key string
	cmd := &cobra.Command{
		Use:     "tls NAME --cert=FILE --key=FILE",
		Short:   "Create a secret from a certificate and its private key, both PEM",
		Example: `  windlass create secret tls web --cert=tls.crt --key=tls.key`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cert == "" || key == "" {
				return errors.New("--cert and --key are required")
			}
			data := map[string][]byte{}
			if err := errors.Join(addFile(data, "tls.crt", cert), addFile(data, "tls.key", key)); err != nil {
				return err
			}
			if _, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"]); err != nil {
				return fmt.Errorf("%s and %s are not a certificate and its key: %w", cert, key, err)
			}
			return createOne(cmd.Context(), e, newSecret(e, args[0], "kubernetes.io/tls", data), &w)
		},
	}
	cmd.Flags().StringVar(&cert, "cert", "", "file with the certificate and its chain")
	cmd.Flags().StringVar(&key, "key", "", "file with the private key")
	w.AddFlags(cmd.Flags())
	return cmd
}

func newSecret(e *session.Env, name, typ string, data map[string][]byte) *schedulingv1.Secret {
	return &schedulingv1.Secret{ApiVersion: "v1", Kind: "Secret", Metadata: named(e, name), Type: typ, Data: data}
}

func named(e *session.Env, name string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: name, Namespace: cmp.Or(e.Namespace, e.Target.PodNamespace())}
}

// createOne creates an object that flags describe, and prints it.
func createOne(ctx context.Context, e *session.Env, o object.Object, w *change.Flags) error {
	if err := w.Settle(); err != nil {
		return err
	}
	kind, err := client.KindOf(o.GetApiVersion(), object.TypeOf(o.ProtoReflect().Descriptor()).GetKind())
	if err != nil {
		return err
	}
	if w.Client() {
		return w.Print(e.Out, kind, o, "created")
	}
	return e.WithClient(func(c *client.Client) error {
		made, err := c.Create(ctx, kind, o, w.Server())
		if err != nil {
			return err
		}
		return w.Print(e.Out, kind, made, "created")
	})
}
