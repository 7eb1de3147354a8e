package machineconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// System is what a configuration wants of the operating system of a machine. The zero System is the one that the
// machine was made with.
type System struct {
	Image           string   `json:"image,omitempty"`           // by its digest
	ExtensionsImage string   `json:"extensionsImage,omitempty"` // by its digest; empty without extensions
	Extensions      []string `json:"extensions,omitempty"`      // in order, each once
	KernelArguments []string `json:"kernelArguments,omitempty"` // in the order of the configuration
}

// SystemOf returns what a configuration wants of the operating system; cfg may be nil.
func SystemOf(cfg *configv1.MachineConfig) System {
	spec := cfg.GetSpec()
	s := System{Image: spec.GetOsImageUrl()}
	if s.Extensions = slices.Compact(slices.Sorted(slices.Values(spec.GetExtensions()))); len(s.Extensions) > 0 {
		s.ExtensionsImage = spec.GetBaseOsExtensionsContainerImage()
	}
	for _, text := range spec.GetKernelArguments() {
		arguments, _ := splitArguments(text)
		s.KernelArguments = append(s.KernelArguments, arguments...)
	}
	return s
}

// Equal reports whether two systems are the same.
func (s System) Equal(o System) bool {
	return s.Image == o.Image && s.ExtensionsImage == o.ExtensionsImage && slices.Equal(s.Extensions, o.Extensions) &&
		slices.Equal(s.KernelArguments, o.KernelArguments)
}

// String describes the system in one line.
func (s System) String() string {
	out := s.Image
	if out == "" {
		out = "the machine's first operating system"
	}
	if len(s.Extensions) > 0 {
		out += " with " + strings.Join(s.Extensions, ", ")
	}
	if len(s.KernelArguments) > 0 {
		out += " and kernel arguments " + quoted(s.KernelArguments)
	}
	return out
}

func quoted(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%q", s))
	}
	return strings.Join(out, " ")
}

// splitArguments splits a text at blanks outside of double quotes, as OpenShift does.
func splitArguments(text string) ([]string, error) {
	quotes := false
	out := strings.FieldsFunc(text, func(r rune) bool {
		if r == '"' {
			quotes = !quotes
		}
		return unicode.IsSpace(r) && !quotes
	})
	if quotes {
		return out, fmt.Errorf("%q: a quote does not end", text)
	}
	return out, nil
}

// extensionName is the form of an extension's name: it is that of a directory in the image of extensions.
var extensionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// system checks what a configuration wants of the operating system.
func (r *reader) system(was, is *configv1.MachineConfigSpec) {
	for _, i := range []struct{ field, was, is string }{
		{"osImageURL", was.GetOsImageUrl(), is.GetOsImageUrl()},
		{
			"baseOSExtensionsContainerImage", was.GetBaseOsExtensionsContainerImage(),
			is.GetBaseOsExtensionsContainerImage(),
		},
	} {
		if i.is == "" || i.is == i.was {
			continue
		}
		if _, err := name.NewDigest(i.is); err != nil {
			r.faults = append(r.faults, object.Faultf("spec."+i.field,
				"%q must name an image by its digest, as NAME@sha256:…: a tag may be another image on another node", i.is))
		}
	}
	if !slices.Equal(was.GetKernelArguments(), is.GetKernelArguments()) {
		for i, text := range is.GetKernelArguments() {
			at := fmt.Sprintf("spec.kernelArguments[%d]", i)
			arguments, err := splitArguments(text)
			switch {
			case err != nil:
				r.faults = append(r.faults, object.Fault{Path: at, Description: err.Error()})
			case len(arguments) == 0 || strings.ContainsFunc(text, unicode.IsControl):
				r.faults = append(r.faults, object.Faultf(at, "%q is no kernel argument", text))
			}
		}
	}
	if slices.Equal(was.GetExtensions(), is.GetExtensions()) &&
		was.GetBaseOsExtensionsContainerImage() == is.GetBaseOsExtensionsContainerImage() {
		return
	}
	for i, extension := range is.GetExtensions() {
		if !extensionName.MatchString(extension) {
			r.faults = append(r.faults, object.Faultf(fmt.Sprintf("spec.extensions[%d]", i), "%q is no name of an extension",
				extension))
		}
	}
	if len(is.GetExtensions()) > 0 && is.GetBaseOsExtensionsContainerImage() == "" {
		r.faults = append(r.faults, object.Fault{
			Path: "spec.extensions", Description: "requires spec.baseOSExtensionsContainerImage, the image that has them",
		})
	}
}
