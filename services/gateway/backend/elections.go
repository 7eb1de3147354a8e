package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/topology"
)

// retryElections is short against a lease (5 s) and long against an election of etcd's own.
const retryElections = time.Second

// FollowLeaders reports to changed who leads each service, now and at each change, until ctx ends; then it returns nil.
// While etcd is away the last answer stays.
func FollowLeaders(ctx context.Context, c *clientv3.Client, changed func(map[string]string), log *slog.Logger) error {
	told := ""
	for {
		err := followOnce(ctx, c, changed)
		if ctx.Err() != nil {
			return nil
		}
		if text := fmt.Sprint(err); text != told {
			told = text
			log.WarnContext(ctx, "elections not followed", "error", err)
		}
		select {
		case <-time.After(retryElections):
		case <-ctx.Done():
			return nil
		}
	}
}

func followOnce(ctx context.Context, c *clientv3.Client, changed func(map[string]string)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	read, stop := context.WithTimeout(ctx, 5*time.Second)
	got, err := c.Get(read, topology.ElectionsPrefix, clientv3.WithPrefix())
	stop()
	if err != nil {
		return err
	}
	leaders := map[string]string{}
	for _, kv := range got.Kvs {
		note(leaders, kv.Key, kv.Value)
	}
	changed(maps.Clone(leaders))
	for r := range c.Watch(ctx, topology.ElectionsPrefix, clientv3.WithPrefix(), clientv3.WithRev(got.Header.Revision+1)) {
		if err := r.Err(); err != nil {
			return err
		}
		for _, e := range r.Events {
			if e.Type == clientv3.EventTypeDelete {
				delete(leaders, service(e.Kv.Key))
				continue
			}
			note(leaders, e.Kv.Key, e.Kv.Value)
		}
		changed(maps.Clone(leaders))
	}
	return fmt.Errorf("watch ended: %w", context.Cause(ctx))
}

func service(key []byte) string { return strings.TrimPrefix(string(key), topology.ElectionsPrefix) }

// note takes a leader from its key; an unreadable value counts as no leader.
func note(leaders map[string]string, key, value []byte) {
	var v struct {
		Address string `json:"address"`
	}
	if err := json.Unmarshal(value, &v); err != nil || v.Address == "" {
		delete(leaders, service(key))
		return
	}
	leaders[service(key)] = v.Address
}
