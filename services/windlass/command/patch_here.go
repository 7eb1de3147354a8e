package command

import (
	"fmt"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
)

// patchHere applies a patch to an object locally, for --dry-run=client.
func patchHere(t target, media string, patch []byte) (object.Object, error) {
	raw, err := manifest.Encode(t.object)
	if err != nil {
		return nil, err
	}
	if raw, err = manifest.Patch(raw, media, patch, t.kind.Message); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	out := t.kind.New()
	if err := manifest.Decode(raw, out); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	return out, nil
}
