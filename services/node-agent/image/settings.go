package image

import (
	"fmt"

	"github.com/windlass-dev/windlass/kit/registry"
)

// Settings say how registries are reached and who must have signed which images: registries.yaml.
type Settings struct {
	Registries registry.Settings `json:"registries"`
	// Signatures are rules about who must have signed which images.
	Signatures []Signatures `json:"signatures"`
}

// readSettings reads the first of the files that exists; without any, the settings are zero.
func readSettings(files ...string) (s Settings, err error) {
	err = registry.Read(&s, files...)
	return s, err
}

// Check implements the interface of registry.Read.
func (s *Settings) Check() error {
	if err := s.Registries.Check(); err != nil {
		return err
	}
	for i, r := range s.Signatures {
		if err := r.check(); err != nil {
			return fmt.Errorf("signatures[%d].%w", i, err)
		}
		for k, other := range s.Signatures[:i] {
			if other.Images == r.Images {
				return fmt.Errorf("signatures[%d].images: %q has a rule, signatures[%d]", i, r.Images, k)
			}
		}
	}
	return nil
}
