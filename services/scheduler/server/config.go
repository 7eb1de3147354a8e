package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/podconfig"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// ResolveConfig returns the config maps and secrets that a pod of the agent's node refers to: the right to read them
// comes with the pod. Agents ask often, so what it returns is from the cache.
func (s *Agents) ResolveConfig(ctx context.Context, r *schedulingv1.ResolveConfigRequest) (
	*schedulingv1.ResolveConfigResponse, error,
) {
	pod, err := s.ownPod(ctx, r.GetNodeName(), r.GetNamespace(), r.GetName(), r.GetUid())
	if err != nil {
		return nil, err
	}
	maps, secrets := podconfig.References(pod.GetSpec())
	out := &schedulingv1.ResolveConfigResponse{
		ConfigMaps: named(s.Tables.ConfigMaps, r.GetNamespace(), maps),
		Secrets:    named(s.Tables.Secrets, r.GetNamespace(), secrets),
	}
	if out.Version = configVersion(out); out.Version == r.GetKnownVersion() {
		return &schedulingv1.ResolveConfigResponse{Version: out.Version, Unchanged: true}, nil
	}
	return out, nil
}

// ownPod returns a pod that is bound to the node of the agent that calls, and has not ended.
func (s *Agents) ownPod(ctx context.Context, node, namespace, name, uid string) (*schedulingv1.Pod, error) {
	if err := s.Nodes.Speaks(ctx, node); err != nil {
		return nil, err
	}
	pod, ok := s.Tables.Pods.Lookup(namespace, name)
	if !ok || runsOn(pod, node, uid) != nil { // the cache may lag behind
		var err error
		if pod, err = s.Tables.Pods.Get(ctx, namespace, name); err != nil {
			return nil, err
		}
		if err := runsOn(pod, node, uid); err != nil {
			return nil, err
		}
	}
	if placement.Terminated(pod) {
		return nil, rpcerr.Forbidden(fmt.Sprintf("pod %q has ended", name))
	}
	return pod, nil
}

// named returns the objects of a namespace with these names, without those that do not exist.
func named[T object.Object](t *resource.Table[T], namespace string, names []string) (out []T) {
	for _, name := range names {
		if o, ok := t.Lookup(namespace, name); ok {
			out = append(out, o)
		}
	}
	return out
}

// configVersion returns a digest of which objects a response has, and in which versions.
func configVersion(r *schedulingv1.ResolveConfigResponse) string {
	h := sha256.New()
	for _, o := range r.GetConfigMaps() {
		fmt.Fprintf(h, "c/%s/%s\n", o.GetMetadata().GetUid(), o.GetMetadata().GetResourceVersion())
	}
	for _, o := range r.GetSecrets() {
		fmt.Fprintf(h, "s/%s/%s\n", o.GetMetadata().GetUid(), o.GetMetadata().GetResourceVersion())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
