package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/platform"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// validationLimit is how long a user's write waits for the provider's judgement.
const validationLimit = 3 * time.Second

// Validate has the provider of a provider spec check it. Paths of the faults begin at the spec. If the provider does
// not answer, that is a warning and no fault. A provider spec of OpenShift's documents that no provider understands is
// checked as its platform demands, and is accepted with a warning.
func (s *Set) Validate(spec *structpb.Struct) (bad []object.Fault, warnings []string) {
	ctx, cancel := context.WithTimeout(context.Background(), validationLimit)
	defer cancel()
	p, err := s.For(spec)
	switch {
	case errors.Is(err, errUnknownKind):
		if platform.Documented(spec) {
			v := platform.Check(spec)
			return v.Refused(), append(v.Warnings, err.Error()+": no instance is created until one does")
		}
		return []object.Fault{object.Faultf("kind", "is %q: %v; providers understand %s", kindOf(spec), errUnknownKind,
			strings.Join(s.understood(), ", "))}, nil
	case err != nil:
		return nil, []string{"the provider spec was not checked: " + err.Error()}
	}
	answer, err := p.client.ValidateProviderSpec(ctx, &providerv1.ValidateProviderSpecRequest{ProviderSpec: spec})
	if err == nil {
		return nil, answer.GetWarnings()
	}
	if fields, ok := rpcerr.Fields(err); ok {
		return fields, nil
	}
	switch status.Code(err) {
	case codes.InvalidArgument:
		return []object.Fault{{Description: status.Convert(err).Message()}}, nil
	case codes.Unimplemented:
		return nil, nil
	}
	return nil, []string{fmt.Sprintf("the provider spec was not checked: %s: %s", p.Name, status.Convert(err).Message())}
}

// understood returns the kinds of provider spec that a provider is in force for.
func (s *Set) understood() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.kinds))
}

// Fault returns why instances of some machines cannot be created or deleted at present; empty if there is no such
// reason known.
func (s *Set) Fault() string {
	if len(s.plugins) == 0 {
		return "no provider is connected: machine-api needs --peer provider-NAME=HOST:PORT"
	}
	var parts []string
	for _, p := range s.plugins {
		p.mu.RLock()
		if p.err != nil {
			parts = append(parts, fmt.Sprintf("%s has not answered: %s", p.Name, status.Convert(p.err).Message()))
		}
		p.mu.RUnlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(s.contested)) {
		for _, name := range s.contested[kind] {
			parts = append(parts, fmt.Sprintf("%s is not in force for kind %s, which %s serves; "+
				"to change that, start machine-api with --provider-for %s=%s", name, kind, s.inForce[kind], kind, name))
		}
	}
	return strings.Join(parts, "; ")
}

// Connected reports whether there is a provider at all, whether it answers or not.
func (s *Set) Connected() bool { return len(s.plugins) > 0 }
