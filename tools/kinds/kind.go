package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// standard are the methods that a kind may have, in the order in which its service has them.
var standard = []string{"Get", "List", "Create", "Update", "Patch", "Apply", "UpdateStatus", "Delete", "Watch"}

// kind is what the option (windlass.meta.v1.resource) of a message says, and where the message is.
type kind struct {
	Group      string
	Kind       string
	Plural     string
	Namespaced bool
	Singleton  string
	Methods    []string // of standard; never empty

	CreatedAtLeader bool

	Package string // such as "windlass.node.v1"
	File    string // as it is imported, such as "windlass/node/v1/node.proto"
}

// Kinds is the kind in the plural, such as "Policies". By our rule the plural in lower case begins as the kind does.
func (k kind) Kinds() string {
	n := 0
	for n < min(len(k.Kind), len(k.Plural)) && unicode.ToLower(rune(k.Kind[n])) == rune(k.Plural[n]) {
		n++
	}
	return k.Kind[:n] + k.Plural[n:]
}

// A is the kind with its article.
func (k kind) A() string {
	if strings.ContainsAny(k.Kind[:1], "AEIOU") {
		return "an " + k.Kind
	}
	return "a " + k.Kind
}

// Field is the name of the field that holds an object, such as "machine_set".
func (k kind) Field() string {
	var b strings.Builder
	for i, r := range k.Kind {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Has reports whether the kind has a standard method.
func (k kind) Has(method string) bool { return slices.Contains(k.Methods, method) }

// PathOfAll is the REST address of the objects of all namespaces.
func (k kind) PathOfAll() string { return "/v1/" + k.Plural }

// Path is the REST address of the objects of a namespace, or of all objects of a kind without namespaces.
func (k kind) Path() string {
	if k.Namespaced {
		return "/v1/namespaces/{namespace}/" + k.Plural
	}
	return k.PathOfAll()
}

// Right is the fields of an access option: a verb on the kind or on a part of it.
func (k kind) Right(verb string, part ...string) string {
	out := fmt.Sprintf("verb: %q, ", verb)
	if k.Group != "" {
		out += fmt.Sprintf("group: %q, ", k.Group)
	}
	return out + fmt.Sprintf("resource: %q", strings.Join(append([]string{k.Plural}, part...), "/"))
}

// N is the number of a request's n-th field, not counting the namespace, which comes first where there is one.
func (k kind) N(n int) int {
	if k.Namespaced {
		return n + 1
	}
	return n
}

// ServiceFile is the name of the proto file of the kind's service, as it is imported.
func (k kind) ServiceFile() string { return strings.TrimSuffix(k.File, ".proto") + "_service.proto" }

// kindOf returns the kind of a message, and false if the message is no kind.
func kindOf(m protoreflect.MessageDescriptor, types linker.Resolver) (kind, bool, error) {
	var k kind
	if ok, err := option(m, "windlass.meta.v1.resource", types, &k); err != nil || !ok {
		return k, false, err
	}
	k.Package, k.File = string(m.ParentFile().Package()), m.ParentFile().Path()
	for _, method := range k.Methods {
		if !slices.Contains(standard, method) {
			return k, false, fmt.Errorf("%s: %q is not one of the standard methods %v", m.FullName(), method, standard)
		}
	}
	if len(k.Methods) == 0 {
		k.Methods = standard
	}
	if name := string(m.Name()); k.Kind != name || !strings.HasPrefix(k.Plural, strings.ToLower(name[:len(name)-1])) {
		return k, false, fmt.Errorf("%s: kind %q and plural %q do not fit the message", m.FullName(), k.Kind, k.Plural)
	}
	return k, true, nil
}

// option decodes one option of a descriptor into out, and reports whether the option is set.
func option(d protoreflect.Descriptor, name protoreflect.FullName, types linker.Resolver, out any) (bool, error) {
	raw, err := proto.Marshal(d.Options())
	if err != nil {
		return false, fmt.Errorf("%s: %w", d.FullName(), err)
	}
	options := d.Options().ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{Resolver: types}).Unmarshal(raw, options); err != nil {
		return false, fmt.Errorf("%s: %w", d.FullName(), err)
	}
	found := false
	options.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.FullName() != name {
			return true
		}
		found = true
		if raw, err = protojson.Marshal(v.Message().Interface()); err == nil {
			err = json.Unmarshal(raw, out)
		}
		return false
	})
	if err != nil {
		return false, fmt.Errorf("%s: %s: %w", d.FullName(), name, err)
	}
	return found, nil
}

// tree is the proto files of a repository: those on disk, and those in written, which take precedence.
type tree struct {
	root    string
	written map[string][]byte // by the name as it is imported
}

// files are the names of the proto files in a folder below proto/, as they are imported, in ascending order.
func (t tree) files(folder string) ([]string, error) {
	var out []string
	dir := filepath.Join(t.root, "proto")
	err := filepath.WalkDir(filepath.Join(dir, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".proto" {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		out = append(out, filepath.ToSlash(rel))
		return err
	})
	for name := range t.written {
		if strings.HasPrefix(name, folder+"/") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

func (t tree) open(name string) (io.ReadCloser, error) {
	if text, ok := t.written[name]; ok {
		return io.NopCloser(strings.NewReader(string(text))), nil
	}
	f, err := os.Open(filepath.Join(t.root, "proto", name))
	if errors.Is(err, fs.ErrNotExist) {
		return os.Open(filepath.Join(t.root, ".imports", name))
	}
	return f, err
}

// foreign are the files of others that declare the options of ours.
var foreign = []string{"buf/validate/validate.proto", "google/api/annotations.proto"}

// compile returns the descriptors of files, with comments, and all that is needed to read their options.
func (t tree) compile(files []string) (linker.Files, linker.Resolver, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: t.open}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	all, err := compiler.Compile(context.Background(), slices.Concat(files, foreign)...)
	if err != nil {
		return nil, nil, err
	}
	return all[:len(files)], all.AsResolver(), nil
}

// kinds returns all kinds, by the names of their files. It reads no service, as those are written from it.
func (t tree) kinds() ([]kind, error) {
	files, err := t.files("windlass")
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_service.proto") })
	compiled, types, err := t.compile(files)
	if err != nil {
		return nil, err
	}
	var out []kind
	for _, f := range compiled {
		for i := range f.Messages().Len() {
			k, ok, err := kindOf(f.Messages().Get(i), types)
			if err != nil {
				return nil, err
			}
			if ok {
				out = append(out, k)
			}
		}
	}
	slices.SortFunc(out, func(a, b kind) int { return strings.Compare(a.File, b.File) })
	return out, nil
}
