package records

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/store"
)

const rotationRecord = "rotation"

// Rotation reads the rotation of an authority and the revision of its record; nil and 0 if there is none.
func (r *Records) Rotation(ctx context.Context) (*hostv1.Rotation, int64, error) {
	record, err := r.st.Get(ctx, rotationRecord)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	out := &hostv1.Rotation{}
	return out, record.Revision, proto.Unmarshal(record.Value, out)
}

// PutRotation stores a rotation if its record still has the revision; 0 means that there is none.
func (r *Records) PutRotation(ctx context.Context, rotation *hostv1.Rotation, revision int64) error {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(rotation)
	if err != nil {
		return err
	}
	_, err = r.st.Commit(ctx, store.Put(rotationRecord, value, revision))
	return err
}

// EndRotation deletes the rotation if its record still has the revision.
func (r *Records) EndRotation(ctx context.Context, revision int64) error {
	_, err := r.st.Commit(ctx, store.Delete(rotationRecord, revision))
	return err
}
