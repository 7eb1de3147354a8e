package store

import "context"

// CheckFence returns nil if the fence of ctx holds now, by a linearizable read, or if ctx has none; ErrFenced if it
// fell. It is for what a leader is about to do outside etcd's keys, where no transaction can compare the fence.
func (s *Store) CheckFence(ctx context.Context) error {
	f, ok := FenceFrom(ctx)
	if !ok {
		return nil
	}
	resp, err := s.client.Get(ctx, f.Key)
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != f.CreateRevision {
		return &OpError{Index: -1, Key: f.Key, Err: ErrFenced}
	}
	return nil
}
