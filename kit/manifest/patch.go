package manifest

import (
	"errors"
	"fmt"
	"mime"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Media types of patches.
const (
	JSONPatch      = "application/json-patch+json"
	MergePatch     = "application/merge-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
)

var (
	// ErrPatchType means that the media type of a patch is none that is known.
	ErrPatchType = errors.New("unsupported type of patch")
	// ErrPatchSyntax means that a patch is malformed, or does not fit what it is to change.
	ErrPatchSyntax = errors.New("patch cannot be applied")
	// ErrPatchTest means that a test of a JSON patch failed: the object is not as the caller thought.
	ErrPatchTest = errors.New("test of the patch failed")
)

// maxOperations of one JSON patch, as in Kubernetes.
const maxOperations = 10_000

// Patch returns original, the JSON of a message of type d, changed by a patch of one of the three media types above;
// parameters of contentType are ignored. Null deletes. A strategic merge knows the merge keys of Kubernetes' lists;
// other lists are replaced as a whole. The result is JSON only: Decode says whether it is a message of type d. Errors
// wrap ErrPatchType, ErrPatchSyntax or ErrPatchTest.
func Patch(original []byte, contentType string, patch []byte, d protoreflect.MessageDescriptor) ([]byte, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil || media != JSONPatch && media != MergePatch && media != StrategicPatch {
		return nil, fmt.Errorf("%w %q: must be %s, %s or %s", ErrPatchType, contentType, JSONPatch, MergePatch,
			StrategicPatch)
	}
	if len(patch) > maxDocument {
		return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrPatchSyntax, maxDocument)
	}
	if wrong := checkKeys(patch); wrong != nil {
		return nil, fmt.Errorf("%w: %w", ErrPatchSyntax, wrong)
	}
	if media == JSONPatch {
		return applyOperations(original, patch)
	}
	if first := (&reader{s: string(patch)}); first.next() != '{' {
		return nil, fmt.Errorf("%w: it must be an object", ErrPatchSyntax)
	}
	var changed []byte
	if media == MergePatch {
		changed, err = jsonpatch.MergePatch(original, patch)
	} else {
		changed, err = strategicpatch.StrategicMergePatchUsingLookupPatchMeta(original, patch, NewPatchMeta(d))
	}
	return limited(changed, err)
}

func applyOperations(original, patch []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPatchSyntax, err)
	}
	if len(operations) > maxOperations {
		return nil, fmt.Errorf("%w: it has more than %d operations", ErrPatchSyntax, maxOperations)
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false // no part of RFC 6902
	options.AccumulatedCopySizeLimit = maxDocument
	options.EscapeHTML = false
	changed, err := operations.ApplyWithOptions(original, options)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		return nil, fmt.Errorf("%w: %w", ErrPatchTest, err)
	}
	return limited(changed, err)
}

// limited passes on the result of a patch unless it failed or is too long.
func limited(changed []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPatchSyntax, err)
	}
	if len(changed) > maxDocument {
		return nil, fmt.Errorf("%w: the object would be longer than %d bytes", ErrPatchSyntax, maxDocument)
	}
	return changed, nil
}
