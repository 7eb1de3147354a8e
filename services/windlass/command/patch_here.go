package command

import (
	"fmt"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/resource"
)

// patchHere applies a patch to an object without the server, for a dry run of the client's.
func patchHere(t target, media string, patch []byte) (resource.Object, error) {
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
