package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newMaintenance(e *session.Env) *cobra.Command {
	f := &flags{}
	var now string
	cmd := command(e, "maintenance [-f FILE]",
		"Show which snapshots of etcd would be taken and removed, and which members defragmented", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
			req := &etcdv1.PlanMaintenanceRequest{}
			var err error
			if req.Now, err = planTime(now); err != nil {
				return err
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Snapshot", "SnapshotSchedule", "Machine")
				if err != nil {
					return err
				}
				req.Machines = g.machineList()
				if list := all[*etcdv1.Snapshot](g); len(list) > 0 {
					req.Snapshots = &etcdv1.SnapshotList{Items: list}
				}
				if list := all[*etcdv1.SnapshotSchedule](g); len(list) > 0 {
					req.Schedules = &etcdv1.SnapshotScheduleList{Items: list}
				}
			}
			resp, err := etcdv1.NewQuorumServiceClient(c.Conn()).PlanMaintenance(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) {
				p.actions(resp.GetActions())
				p.end(resp.GetHeldBack(), "", nil)
				if next := resp.GetNextCheckAfter(); next != nil {
					p.printf("\nEvaluated again in %s.\n", next.AsDuration().Round(time.Second))
				}
			})
		})
	cmd.Long = cmd.Short + `.

Kinds in a file: Snapshot, SnapshotSchedule and Machine, each instead of those in the cluster.`
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z")
	return cmd
}

// quorumRequest reads the file of a quorum plan, which is not an object of a kind.
func quorumRequest(e *session.Env, f *flags) (*etcdv1.PlanQuorumRequest, error) {
	if len(f.Names) != 1 {
		return nil, fmt.Errorf("specify one file, not %d", len(f.Names))
	}
	name := f.Names[0]
	raw, err := readAll(name, e.In)
	if err != nil {
		return nil, err
	}
	body, err := manifest.JSON(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, fmt.Errorf("%s: must be an object", name)
	}
	req := &etcdv1.PlanQuorumRequest{}
	if _, whole := top["quorum"]; whole {
		err = manifest.Decode(body, req)
	} else {
		req.Quorum = &etcdv1.Quorum{}
		err = manifest.Decode(body, req.Quorum)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return req, nil
}

// readAll reads a file, or in if the name is -.
func readAll(name string, in io.Reader) ([]byte, error) {
	const limit = 8 << 20 // the limit of one document
	if name != "-" {
		opened, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		in = opened
	}
	return io.ReadAll(io.LimitReader(in, limit))
}
