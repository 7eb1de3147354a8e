package change

import (
	"fmt"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// PatchLocally applies a patch to an object locally, for --dry-run=client.
func PatchLocally(t target.Item, media string, patch []byte) (object.Object, error) {
	raw, err := manifest.Encode(t.Object)
	if err != nil {
		return nil, err
	}
	if raw, err = manifest.Patch(raw, media, patch, t.Kind.Message); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	out := t.Kind.New()
	if err := manifest.Decode(raw, out); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	return out, nil
}
