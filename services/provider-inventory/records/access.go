package records

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/store"
)

const accessRecord = "access"

// Access reads the policy and the bearer tokens of the control-plane hosts, and the revision of their record; nil and 0
// if there is none.
func (r *Records) Access(ctx context.Context) (*hostv1.ClusterAccess, int64, error) {
	record, err := r.st.Get(ctx, accessRecord)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if by, err := r.st.SealsBy(); err != nil {
		return nil, 0, err
	} else if by != 0 && record.SealedBy == 0 {
		return nil, 0, errors.New("the record of the policy and the tokens is not sealed: this service has not written it")
	}
	out := &hostv1.ClusterAccess{}
	return out, record.Revision, proto.Unmarshal(record.Value, out)
}

// PutAccess stores the policy and the bearer tokens if their record still has the revision; 0 means that there is none.
// It is sealed: only who has the keys of the services can write what the hosts take as their policy. An earlier record
// can be put back by who writes to etcd; its generation shows that.
func (r *Records) PutAccess(ctx context.Context, access *hostv1.ClusterAccess, revision int64) error {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(access)
	if err != nil {
		return err
	}
	_, err = r.st.Commit(ctx, store.PutSealed(accessRecord, value, revision))
	return err
}
