package rpcerr

import (
	"errors"
	"strings"

	"github.com/windlass-dev/windlass/kit/store"
)

// ofStore maps the sentinels of kit/store; nil if err is none of them. Whoever knows the kind answers NotFound, Exists
// or Conflict with it; here only the record's key is known.
func ofStore(err error) error {
	kind, name := "record", ""
	if op := new(store.OpError); errors.As(err, &op) {
		kind, name = ofKey(op.Key)
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return NotFound(kind, name)
	case errors.Is(err, store.ErrExists):
		return Exists(kind, name)
	case errors.Is(err, store.ErrConflict):
		return Conflict(kind, name, "")
	case errors.Is(err, store.ErrCompacted):
		return Expired("the revision is no longer kept; list again")
	case errors.Is(err, store.ErrBehind):
		return Expired("the revision is too far back; list again")
	case errors.Is(err, store.ErrUnreadable):
		return Unreadable(kind, name)
	case errors.Is(err, store.ErrNoSpace):
		return TooMany("etcd has no space left: it accepts no writes until space is freed", 0)
	case errors.Is(err, store.ErrFenced):
		return Unavailable("this replica is no longer the leader")
	case errors.Is(err, store.ErrUnavailable):
		return Unavailable("the store does not answer; it may be electing a leader")
	}
	return nil
}

// ofKey reads "machines/openshift-machine-api/m-1" as the kind "machines" and the name "openshift-machine-api/m-1", and
// leaves out the "-" that stands for no namespace.
func ofKey(key string) (kind, name string) {
	kind, name, ok := strings.Cut(key, "/")
	if !ok {
		return "record", key
	}
	return kind, strings.TrimPrefix(name, "-/")
}
