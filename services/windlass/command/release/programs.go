package release

import (
	"context"
	"debug/elf"
	"fmt"
	"runtime"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
)

// architectures are the processors that Windlass is built for, by what an executable says of itself.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// bringPrograms makes the image of the executables, and the manifests of the programs that run from it.
func (f *imageFlags) bringPrograms(ctx context.Context) error {
	files := map[string]string{}
	for _, path := range f.executables {
		arch, err := architecture(path)
		if err != nil {
			return fmt.Errorf("--executable %s: %w", path, err)
		}
		if other, twice := files[arch]; twice {
			return fmt.Errorf("--executable %s: %s is for %s, too", path, other, arch)
		}
		files[arch] = path
	}
	own, ok := files[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("--executable: one for %s is needed, since its version is asked of it", runtime.GOARCH)
	}
	version, err := release.ExecutableVersion(ctx, own)
	if err != nil {
		return fmt.Errorf("--executable %s: %w", own, err)
	}
	digest, err := release.NewExecutable(f.to, files)
	if err != nil {
		return err
	}
	image := f.executableImage + "@" + digest
	if f.build.Images == nil {
		f.build.Images = map[string]string{}
	}
	f.build.Images["windlass"] = image
	f.build.Further, err = f.programManifests(image, version)
	return err
}

// programManifests returns the manifests of the programs by the names of their files: those of a level have
// the same run level.
func (f *imageFlags) programManifests(image, version string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, name := range topology.UpdateOrder() {
		if len(f.programs) > 0 && !slices.Contains(f.programs, name) {
			continue
		}
		raw, err := yaml.Marshal(map[string]any{
			"apiVersion": "windlass.dev/v1", "kind": "Program", "metadata": map[string]any{
				"name":        name,
				"annotations": map[string]any{release.IncludeAnnotation + release.DefaultProfile: "true"},
			},
			"spec": map[string]any{"image": image, "version": version},
		})
		if err != nil {
			return nil, err
		}
		out[fmt.Sprintf("0000_%02d_windlass-%s_00_program.yaml", topology.UpdateLevel(name), name)] = raw
	}
	return out, nil
}

// architecture returns the processor architecture of an executable for Linux.
func architecture(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	arch, known := architectures[f.Machine]
	if !known || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "", fmt.Errorf("it is no executable for amd64 or arm64 (%s, %s)", f.Machine, f.Type)
	}
	return arch, nil
}
