package objects

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
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
)

type scaleFlags struct {
	target.Selection
	change.Flags
	replicas, current int32
	version           string
	timeout           time.Duration
}

// NewScale returns the command scale.
func NewScale(e *session.Env) *cobra.Command {
	var f scaleFlags
	cmd := &cobra.Command{
		Use:   "scale --replicas=COUNT (TYPE NAME... | TYPE/NAME...)",
		Short: "Set the number of replicas of an object",
		Example: `  windlass scale machineset workers --replicas=4
  windlass scale --current-replicas=4 --replicas=2 machineset/workers --timeout=2m`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return scale(cmd.Context(), e, args, f) },
	}
	fs := cmd.Flags()
	f.Selection.AddFlags(fs)
	f.AddAll(fs)
	f.Flags.AddFlags(fs)
	fs.Int32Var(&f.replicas, "replicas", -1, "desired number of replicas")
	fs.Int32Var(&f.current, "current-replicas", -1, "scale only if the current desired number is this")
	fs.StringVar(&f.version, "resource-version", "", "scale only if the object is at this resource version")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait until all replicas are ready; 0 does not wait")
	return cmd
}

func scale(ctx context.Context, e *session.Env, args []string, f scaleFlags) error {
	if f.replicas < 0 {
		return errors.New("the --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0")
	}
	if err := f.Settle(); err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		list, err := target.Find(ctx, e, c, args, f.Selection)
		var failed failure.List
		failed.Add(err)
		var scaled []target.Item
		for _, t := range list {
			o, err := f.apply(ctx, c, t)
			if err != nil {
				failed.Add(err)
				continue
			}
			failed.Add(f.Print(e.Out, t.Kind, o, "scaled"))
			scaled = append(scaled, target.Item{Kind: t.Kind, Object: o})
		}
		if f.timeout > 0 && f.Suffix() == "" {
			failed.Add(awaitScaled(ctx, e, c, scaled, f))
		}
		return failed.Err()
	})
}

// apply scales one object. The server enforces the preconditions: the patch carries the resource version that was read.
func (f scaleFlags) apply(ctx context.Context, c *client.Client, t target.Item) (object.Object, error) {
	spec := t.Kind.Message.Fields().ByName("spec")
	if spec == nil || spec.Message() == nil || spec.Message().Fields().ByName("replicas") == nil {
		return nil, fmt.Errorf("cannot scale %s: the kind has no replicas", t)
	}
	now, _ := manifest.Lookup(t.Object, "spec.replicas")
	have, _ := now.(int32)
	if f.current >= 0 && have != f.current {
		return nil, fmt.Errorf("%s: expected replicas to be %d, was %d", t, f.current, have)
	}
	metadata := map[string]any{}
	switch {
	case f.version != "":
		metadata["resourceVersion"] = f.version
	case f.current >= 0:
		metadata["resourceVersion"] = t.Object.GetMetadata().GetResourceVersion()
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": map[string]any{"replicas": f.replicas}})
	if err != nil {
		return nil, err
	}
	if f.Client() {
		return t.Object, nil
	}
	return c.Patch(ctx, t.Kind, t.Namespace(), t.Name(), manifest.MergePatch, patch, f.Server())
}

func awaitScaled(ctx context.Context, e *session.Env, c *client.Client, list []target.Item, f scaleFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	var failed failure.List
	for _, t := range list {
		failed.Add(waiting.Await(ctx, e, c, waiting.Goal{
			Kind: t.Kind, Namespace: t.Namespace(), Name: t.Name(), What: "replicas",
			Met: func(o object.Object) (bool, error) {
				if o == nil {
					return false, fmt.Errorf("%s was deleted", t)
				}
				have, ready := replicasOf(o)
				return have == f.replicas && ready == f.replicas, nil
			},
			Reason: func(_ context.Context, o object.Object) string {
				if o == nil {
					return ""
				}
				have, ready := replicasOf(o)
				return fmt.Sprintf("%d of %d machines, %d ready", have, f.replicas, ready)
			},
		}))
	}
	return failed.Err()
}

func replicasOf(o proto.Message) (have, ready int32) {
	h, _ := manifest.Lookup(o, "status.replicas")
	r, _ := manifest.Lookup(o, "status.readyReplicas")
	have, _ = h.(int32)
	ready, _ = r.(int32)
	return have, ready
}
