package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

type scaleFlags struct {
	selection
	writeFlags
	replicas, current int32
	version           string
	timeout           time.Duration
}

func newScale(e *env) *cobra.Command {
	var f scaleFlags
	cmd := &cobra.Command{
		Use:   "scale --replicas=COUNT (TYPE NAME... | TYPE/NAME...)",
		Short: "Set the number of replicas of an object",
		Example: `  windlass scale machineset workers --replicas=4
  windlass scale --current-replicas=4 --replicas=2 machineset/workers --timeout=2m`,
		ValidArgsFunction: e.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return e.scale(cmd.Context(), args, f) },
	}
	fs := cmd.Flags()
	f.selection.flags(fs)
	f.allFlag(fs)
	f.writeFlags.flags(fs)
	fs.Int32Var(&f.replicas, "replicas", -1, "desired number of replicas")
	fs.Int32Var(&f.current, "current-replicas", -1, "scale only if the current desired number is this")
	fs.StringVar(&f.version, "resource-version", "", "scale only if the object is at this resource version")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait until all replicas are ready; 0 does not wait")
	return cmd
}

func (e *env) scale(ctx context.Context, args []string, f scaleFlags) error {
	if f.replicas < 0 {
		return errors.New("the --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0")
	}
	if err := f.settle(); err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		list, err := e.targets(ctx, c, args, f.selection)
		var failed failures
		failed.add(err)
		var scaled []target
		for _, t := range list {
			o, err := f.apply(ctx, c, t)
			if err != nil {
				failed.add(err)
				continue
			}
			failed.add(f.print(e.out, t.kind, o, "scaled"))
			scaled = append(scaled, target{t.kind, o})
		}
		if f.timeout > 0 && f.suffix() == "" {
			failed.add(e.awaitScaled(ctx, c, scaled, f))
		}
		return failed.err()
	})
}

// apply scales one object. The server enforces the preconditions: the patch carries the resource version that was read.
func (f scaleFlags) apply(ctx context.Context, c *client.Client, t target) (object.Object, error) {
	spec := t.kind.Message.Fields().ByName("spec")
	if spec == nil || spec.Message() == nil || spec.Message().Fields().ByName("replicas") == nil {
		return nil, fmt.Errorf("cannot scale %s: the kind has no replicas", t)
	}
	now, _ := manifest.Lookup(t.object, "spec.replicas")
	have, _ := now.(int32)
	if f.current >= 0 && have != f.current {
		return nil, fmt.Errorf("%s: expected replicas to be %d, was %d", t, f.current, have)
	}
	metadata := map[string]any{}
	switch {
	case f.version != "":
		metadata["resourceVersion"] = f.version
	case f.current >= 0:
		metadata["resourceVersion"] = t.object.GetMetadata().GetResourceVersion()
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": map[string]any{"replicas": f.replicas}})
	if err != nil {
		return nil, err
	}
	if f.client() {
		return t.object, nil
	}
	return c.Patch(ctx, t.kind, t.namespace(), t.name(), manifest.MergePatch, patch, f.server())
}

func (e *env) awaitScaled(ctx context.Context, c *client.Client, list []target, f scaleFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	var failed failures
	for _, t := range list {
		failed.add(e.await(ctx, c, goal{
			kind: t.kind, namespace: t.namespace(), name: t.name(), what: "replicas",
			met: func(o object.Object) (bool, error) {
				if o == nil {
					return false, fmt.Errorf("%s was deleted", t)
				}
				have, ready := replicasOf(o)
				return have == f.replicas && ready == f.replicas, nil
			},
			reason: func(_ context.Context, o object.Object) string {
				if o == nil {
					return ""
				}
				have, ready := replicasOf(o)
				return fmt.Sprintf("%d of %d machines, %d ready", have, f.replicas, ready)
			},
		}))
	}
	return failed.err()
}

func replicasOf(o proto.Message) (have, ready int32) {
	h, _ := manifest.Lookup(o, "status.replicas")
	r, _ := manifest.Lookup(o, "status.readyReplicas")
	have, _ = h.(int32)
	ready, _ = r.(int32)
	return have, ready
}
