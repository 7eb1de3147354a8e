package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// maxRendered is the size up to which a rendered configuration is accepted, so that it can be stored and sent whole.
	// Source: MCO.
	maxRendered = 1_572_864

	defaultKernel = "default"
)

// Rendered is what the machine configurations of a pool make together.
type Rendered struct {
	Config  *configv1.MachineConfig // with its name
	Sources []string                // names, in the order of their merging
}

// selected returns the machine configurations that a pool selects, in the order in which they are merged: those for
// workers first, then all others, both by name, so that those of a custom pool or of the masters have the last word.
// Source: MCO.
func selected(pool *configv1.MachineConfigPool, configs []*configv1.MachineConfig) ([]*configv1.MachineConfig, error) {
	sel, bad := object.LabelSelector(pool.GetSpec().GetMachineConfigSelector(), "spec.machineConfigSelector")
	if len(bad) > 0 {
		return nil, errors.New(bad[0].String())
	}
	var out []*configv1.MachineConfig
	for _, c := range configs {
		m := c.GetMetadata()
		if IsRendered(m.GetName()) || m.GetDeletionTimestamp() != nil || !sel.Matches(labels.Set(m.GetLabels())) {
			continue
		}
		if m.GetLabels()[RoleLabel] == "" {
			return nil, fmt.Errorf("machine config %q is selected, but has no label %s", m.GetName(), RoleLabel)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no machine config matches spec.machineConfigSelector")
	}
	slices.SortFunc(out, func(a, b *configv1.MachineConfig) int {
		if aw, bw := forWorkers(a), forWorkers(b); aw != bw {
			if aw {
				return -1
			}
			return 1
		}
		return strings.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return out, nil
}

func forWorkers(c *configv1.MachineConfig) bool {
	return c.GetMetadata().GetLabels()[RoleLabel] == workerPool
}

// Render merges the machine configurations that a pool selects. The name depends on the pool's name and the content
// alone. present are the configurations that the pool's nodes have: it is an error if a node that has one of them
// cannot be brought to the result, or a new node if there are none.
func Render(pool *configv1.MachineConfigPool, configs, present []*configv1.MachineConfig) (Rendered, error) {
	r, why, err := Preview(pool, configs, present)
	switch {
	case err != nil:
		return Rendered{}, err
	case len(why) > 0:
		return Rendered{}, fmt.Errorf("cannot be put in force: %s", some(why, "; "))
	}
	return r, nil
}

// Preview is Render, and returns what nodes cannot be brought to with the reasons, one line each.
func Preview(pool *configv1.MachineConfigPool, configs, present []*configv1.MachineConfig) (Rendered, []string, error) {
	selected, err := selected(pool, configs)
	if err != nil {
		return Rendered{}, nil, err
	}
	r, err := merged(pool, selected)
	if err != nil {
		return Rendered{}, nil, err
	}
	return r, obstacles(r.Config, selected, present), nil
}

// merged merges the machine configurations that a pool selects.
func merged(pool *configv1.MachineConfigPool, selected []*configv1.MachineConfig) (Rendered, error) {
	spec := &configv1.MachineConfigSpec{KernelType: defaultKernel, Fips: proto.Bool(false)}
	var parts []types.Config
	var r Rendered
	for i, c := range selected {
		name := c.GetMetadata().GetName()
		part, bad := parse(c.GetSpec().GetConfig(), "spec.config")
		if len(bad) > 0 {
			return Rendered{}, fmt.Errorf("machine config %q: %s: %s", name, bad[0].Path, bad[0].Description)
		}
		if i > 0 {
			part = explicit(part)
		}
		parts = append(parts, part)
		addSettings(spec, c.GetSpec())
		r.Sources = append(r.Sources, name)
	}
	if slices.Contains(spec.Extensions, "kernel-devel") && spec.KernelType != defaultKernel {
		return Rendered{}, fmt.Errorf("the extension kernel-devel does not go with the kernel type %s", spec.KernelType)
	}
	var err error
	if spec.Config, err = format(settled(mergeAll(parts))); err != nil {
		return Rendered{}, err
	}
	if _, bad := parse(spec.Config, "spec.config"); len(bad) > 0 { // two valid configurations can make an invalid one
		return Rendered{}, fmt.Errorf("merged: %s: %s", bad[0].Path, bad[0].Description)
	}
	sum, size, err := digest(spec)
	if err != nil {
		return Rendered{}, err
	}
	if size > maxRendered {
		return Rendered{}, fmt.Errorf("the merged configuration has %d bytes, more than %d", size, maxRendered)
	}
	r.Config = &configv1.MachineConfig{
		ApiVersion: "machineconfiguration.openshift.io/v1", Kind: "MachineConfig",
		Metadata: &metav1.ObjectMeta{Name: RenderedPrefix + pool.GetMetadata().GetName() + "-" + sum}, Spec: spec,
	}
	return r, nil
}

// addSettings merges what is not Ignition: lists are joined, the last word counts for the rest.
func addSettings(whole, part *configv1.MachineConfigSpec) {
	whole.KernelArguments = append(whole.KernelArguments, part.GetKernelArguments()...)
	whole.Extensions = append(whole.Extensions, part.GetExtensions()...)
	whole.Fips = proto.Bool(whole.GetFips() || part.GetFips())
	if k := part.GetKernelType(); k != "" && k != defaultKernel {
		whole.KernelType = k
	}
	if u := part.GetOsImageUrl(); u != "" {
		whole.OsImageUrl = u
	}
	if u := part.GetBaseOsExtensionsContainerImage(); u != "" {
		whole.BaseOsExtensionsContainerImage = u
	}
}

// explicit has every file of the configuration say how it is compressed, so that it does not take that over from the
// one below it.
func explicit(c types.Config) types.Config {
	c.Storage.Files = slices.Clone(c.Storage.Files)
	for i := range c.Storage.Files {
		if f := &c.Storage.Files[i].Contents; f.Source != nil && f.Compression == nil {
			f.Compression = new(string)
		}
	}
	return c
}

// settled takes back what explicit wrote, and has files replace what is there.
func settled(c types.Config) types.Config {
	c.Ignition.Version = types.MaxVersion.String()
	c.Storage.Files = slices.Clone(c.Storage.Files)
	for i := range c.Storage.Files {
		f := &c.Storage.Files[i]
		if f.Contents.Compression != nil && *f.Contents.Compression == "" {
			f.Contents.Compression = nil
		}
		if f.Overwrite == nil && f.Contents.Source != nil {
			f.Overwrite = proto.Bool(true)
		}
	}
	return c
}

// digest returns 32 hexadecimal digits for the content of a configuration, and its size in bytes.
func digest(spec *configv1.MachineConfigSpec) (string, int, error) {
	// A map is written in the order of its keys, so the same content always gives the same bytes.
	raw, err := json.Marshal(map[string]any{
		"osImageURL": spec.GetOsImageUrl(), "baseOSExtensionsContainerImage": spec.GetBaseOsExtensionsContainerImage(),
		"config": spec.GetConfig().AsMap(), "kernelArguments": spec.GetKernelArguments(), "extensions": spec.GetExtensions(),
		"fips": spec.GetFips(), "kernelType": spec.GetKernelType(),
	})
	if err != nil {
		return "", 0, err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16]), len(raw), nil
}

// Faults returns what is wrong with a machine configuration beyond the shape of its message.
func Faults(c *configv1.MachineConfig) []object.Fault {
	_, bad := parse(c.GetSpec().GetConfig(), "spec.config")
	return bad
}
