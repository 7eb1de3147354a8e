package resource

import (
	"context"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// Creation is how the objects are stored that Config.Creating completed.
type Creation[T object.Object] struct {
	// Fence must hold when they are stored. If it fell, they are stored as they were, without what Creating added.
	Fence store.Fence
	// Done is called once with the results, in the order of the objects. It must not modify them.
	Done func(results []Written[T])
}

// creating calls Config.Creating, if there is one.
func (t *Table[T]) creating(objs []T) *Creation[T] {
	if t.cfg.Creating == nil || len(objs) == 0 {
		return nil
	}
	return t.cfg.Creating(objs)
}

// Resolve returns the object with a key, the zero T if there is none, after a creation of it by this table ended
// without a known outcome: that creation is not carried out any more, however late etcd comes to it. It fails if etcd
// does not answer.
func (t *Table[T]) Resolve(ctx context.Context, k object.Key) (T, error) {
	var none T
	// Any commit that is carried out fences the attempts before it. No object has an empty name.
	if _, err := t.st.Commit(ctx, store.Check(t.key(object.Key{}), 0)); err != nil {
		return none, err
	}
	o, err := t.Get(ctx, k.Namespace, k.Name)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return none, nil
	}
	return o, err
}
