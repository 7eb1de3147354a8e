// Package rollout makes the command rollout: the state and the history of deployments, stateful sets, daemon sets and
// the control-plane machine set, and the return to an earlier revision.
package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/pause"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// revisionAnnotation is the revision of a pod template, on the deployment and on its replica sets.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// New returns the command rollout.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Manage the rollout of deployments, stateful sets, daemon sets, control-plane machines and node configurations",
	}
	cmd.AddCommand(
		newStatus(e), newHistory(e), newUndo(e),
		newPause(e),
		newResume(e),
		newRestart(e),
	)
	return cmd
}

// renewed reads the objects that arguments name, which must be of the given kinds.
func renewed(ctx context.Context, e *session.Env, c *client.Client, args []string, kinds ...string) ([]target.Item,
	error,
) {
	list, err := target.Find(ctx, e, c, args, target.Selection{})
	for _, t := range list {
		if !slices.Contains(kinds, t.Kind.GetKind()) {
			return nil, fmt.Errorf("%s: this kind is not supported, only %s", t,
				strings.ToLower(strings.Join(kinds, ", ")))
		}
	}
	return list, err
}

func newStatus(e *session.Env) *cobra.Command {
	var watch bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:               "status (TYPE NAME | TYPE/NAME)",
		Short:             "Show the status of a rollout and wait until it is complete",
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error {
				list, err := renewed(cmd.Context(), e, c, args, "Deployment", statefulSet, daemonSet, controlPlane,
					pools)
				if err != nil {
					return err
				}
				ctx := cmd.Context()
				if timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, timeout)
					defer cancel()
				}
				var failed failure.List
				for _, t := range list {
					failed.Add(awaitStatus(ctx, e, c, t, watch))
				}
				return failed.Err()
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "wait until the rollout is complete")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 means no limit")
	return cmd
}

func awaitStatus(ctx context.Context, e *session.Env, c *client.Client, t target.Item, watch bool) error {
	said, want := "", ""
	tell := func(o object.Object) (bool, error) {
		if o == nil {
			return false, fmt.Errorf("%s was deleted", t)
		}
		if pool, ok := o.(*configv1.MachineConfigPool); ok && pool.GetSpec().GetPin() == nil &&
			pool.GetSpec().GetConfiguration().GetName() != want {
			var err error
			if want, err = rendered(ctx, c, t.Name()); err != nil {
				return false, err
			}
		}
		text, done, err := statusText(o, want)
		if pool, ok := o.(*configv1.MachineConfigPool); ok && done && pool.GetSpec().GetPin() == nil {
			if want, err = rendered(ctx, c, t.Name()); err == nil { // a change of a moment ago counts
				text, done, err = statusText(o, want)
			}
		}
		if err == nil && text != said {
			said = text
			fmt.Fprintln(e.Out, text)
		}
		return done, err
	}
	if !watch {
		_, err := tell(t.Object)
		return err
	}
	return waiting.Await(ctx, e, c, waiting.Goal{
		Kind: t.Kind, Namespace: t.Namespace(), Name: t.Name(), What: "rollout", Met: tell,
		Reason: func(context.Context, object.Object) string { return "" },
	})
}

// statusText returns the state of a rollout in kubectl's words, and whether it is complete. config is the configuration
// of a pool that is not held.
func statusText(o object.Object, config string) (text string, done bool, err error) {
	name := o.GetMetadata().GetName()
	switch o := o.(type) {
	case *schedulingv1.Deployment:
		st, want := o.GetStatus(), int32(1)
		if sp := o.GetSpec(); sp != nil && sp.Replicas != nil {
			want = sp.GetReplicas()
		}
		for _, c := range st.GetConditions() {
			if c.GetType() == "Progressing" && c.GetReason() == "ProgressDeadlineExceeded" {
				return "", false, fmt.Errorf("deployment %q exceeded its progress deadline", name)
			}
		}
		switch {
		case st.GetObservedGeneration() < o.GetMetadata().GetGeneration():
			return "Waiting for deployment spec update to be observed...", false, nil
		case st.GetUpdatedReplicas() < want:
			return fmt.Sprintf("Waiting for deployment %q rollout to finish: %d out of %d new replicas have been updated...",
				name, st.GetUpdatedReplicas(), want), false, nil
		case st.GetReplicas() > st.GetUpdatedReplicas():
			return fmt.Sprintf("Waiting for deployment %q rollout to finish: %d old replicas are pending termination...", name,
				st.GetReplicas()-st.GetUpdatedReplicas()), false, nil
		case st.GetAvailableReplicas() < st.GetUpdatedReplicas():
			return fmt.Sprintf("Waiting for deployment %q rollout to finish: %d of %d updated replicas are available...", name,
				st.GetAvailableReplicas(), st.GetUpdatedReplicas()), false, nil
		}
		return fmt.Sprintf("deployment %q successfully rolled out", name), true, nil
	case *schedulingv1.StatefulSet:
		return statefulSetText(o)
	case *schedulingv1.DaemonSet:
		st := o.GetStatus()
		switch {
		case o.GetSpec().GetUpdateStrategy().GetType() == "OnDelete":
			return "", false, errors.New("rollout status is only available for RollingUpdate strategy type")
		case st.GetObservedGeneration() < o.GetMetadata().GetGeneration():
			return "Waiting for daemon set spec update to be observed...", false, nil
		case st.GetUpdatedNumberScheduled() < st.GetDesiredNumberScheduled():
			return fmt.Sprintf("Waiting for daemon set %q rollout to finish: %d out of %d new pods have been updated...", name,
				st.GetUpdatedNumberScheduled(), st.GetDesiredNumberScheduled()), false, nil
		case st.GetNumberAvailable() < st.GetDesiredNumberScheduled():
			return fmt.Sprintf("Waiting for daemon set %q rollout to finish: %d of %d updated pods are available...", name,
				st.GetNumberAvailable(), st.GetDesiredNumberScheduled()), false, nil
		}
		return fmt.Sprintf("daemon set %q successfully rolled out", name), true, nil
	case *machinev1.ControlPlaneMachineSet:
		return controlPlaneText(o)
	case *configv1.MachineConfigPool:
		return poolText(o, config)
	}
	return "", false, fmt.Errorf("%s has no rollout", name)
}

// statefulSetText returns the state of the rollout of a stateful set, and whether it is complete.
func statefulSetText(s *schedulingv1.StatefulSet) (text string, done bool, err error) {
	st, want := s.GetStatus(), int32(1)
	if sp := s.GetSpec(); sp != nil && sp.Replicas != nil {
		want = sp.GetReplicas()
	}
	strategy := s.GetSpec().GetUpdateStrategy().GetFields()
	partition := int32(strategy["rollingUpdate"].GetStructValue().GetFields()["partition"].GetNumberValue())
	switch update := max(0, want-partition); {
	case strategy["type"].GetStringValue() == "OnDelete":
		return "", false, errors.New("rollout status is only available for RollingUpdate strategy type")
	case st.GetObservedGeneration() < s.GetMetadata().GetGeneration():
		return "Waiting for statefulset spec update to be observed...", false, nil
	case st.GetReadyReplicas() < want:
		return fmt.Sprintf("Waiting for %d pods to be ready...", want-st.GetReadyReplicas()), false, nil
	case st.GetUpdatedReplicas() < update && partition > 0:
		return fmt.Sprintf("Waiting for partitioned roll out to finish: %d out of %d new pods have been updated...",
			st.GetUpdatedReplicas(), update), false, nil
	case st.GetUpdatedReplicas() < update, partition == 0 && st.GetUpdateRevision() != st.GetCurrentRevision():
		return fmt.Sprintf("waiting for statefulset rolling update to complete %d pods at revision %s...",
			st.GetUpdatedReplicas(), st.GetUpdateRevision()), false, nil
	case partition > 0:
		return fmt.Sprintf("partitioned roll out complete: %d new pods have been updated...", st.GetUpdatedReplicas()), true,
			nil
	}
	return fmt.Sprintf("statefulset rolling update complete %d pods at revision %s...", st.GetCurrentReplicas(),
		st.GetCurrentRevision()), true, nil
}

// controlPlaneText returns the state of the replacement of control-plane machines, and whether it is complete.
func controlPlaneText(s *machinev1.ControlPlaneMachineSet) (text string, done bool, err error) {
	name, st := s.GetMetadata().GetName(), s.GetStatus()
	degraded, moving := object.FindCondition(st.GetConditions(), "Degraded"), object.FindCondition(st.GetConditions(),
		"Progressing")
	switch {
	case st.GetObservedGeneration() < s.GetMetadata().GetGeneration():
		return "Waiting for control-plane machine set spec update to be observed...", false, nil
	case s.GetSpec().GetState() != "Active":
		return "", false, fmt.Errorf("control-plane machine set %q is not Active: no machine is replaced", name)
	case degraded.GetStatus() == "True":
		return "", false, fmt.Errorf("control-plane machine set %q is degraded: %s: %s", name, degraded.GetReason(),
			degraded.GetMessage())
	case moving.GetStatus() != "False":
		return fmt.Sprintf("Waiting for control-plane machine set %q rollout to finish: %s", name, moving.GetMessage()),
			false,
			nil
	}
	return fmt.Sprintf("control-plane machine set %q successfully rolled out", name), true, nil
}

func newHistory(e *session.Env) *cobra.Command {
	var revision int32
	cmd := &cobra.Command{
		Use:               "history (TYPE NAME | TYPE/NAME)",
		Short:             "Show the revisions of a deployment, stateful set or daemon set, or the configurations of a pool",
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error {
				list, err := renewed(cmd.Context(), e, c, args, "Deployment", statefulSet, daemonSet, pools)
				if err != nil {
					return err
				}
				var failed failure.List
				for _, t := range list {
					if pool, ok := t.Object.(*configv1.MachineConfigPool); ok {
						failed.Add(showFormer(cmd.Context(), e, c, pool))
						continue
					}
					failed.Add(showHistory(cmd.Context(), e, c, t, revision))
				}
				return failed.Err()
			})
		},
	}
	cmd.Flags().Int32Var(&revision, "revision", 0, "show the pod template of this revision")
	return cmd
}

// revision is a template that an object has or had.
type revision struct {
	template proto.Message
	cause    string // why it was chosen, as a user noted it
}

func showHistory(ctx context.Context, e *session.Env, c *client.Client, t target.Item, number int32) error {
	all, err := revisionsOf(ctx, c, t)
	if err != nil {
		return err
	}
	if number > 0 {
		r, ok := all[int(number)]
		if !ok {
			return fmt.Errorf("unable to find the specified revision %d of %s", number, t)
		}
		fmt.Fprintf(e.Out, "%s with revision #%d\n", t, number)
		return printer.Message(e.Out, printer.Format{Word: printer.YAML}, r.template)
	}
	fmt.Fprintln(e.Out, t)
	rows := [][]string{{"REVISION", "CHANGE-CAUSE"}}
	for _, n := range slices.Sorted(maps.Keys(all)) {
		rows = append(rows, []string{strconv.Itoa(n), table.OrNone(all[n].cause)})
	}
	return table.New(e.Out).Print(rows...)
}

// revisionsOf returns the revisions of an object by their numbers. Those of a deployment are its replica sets, those of
// others are ControllerRevisions.
func revisionsOf(ctx context.Context, c *client.Client, t target.Item) (map[int]revision, error) {
	const changeCause = "kubernetes.io/change-cause"
	uid, out := t.Object.GetMetadata().GetUid(), map[int]revision{}
	if t.Kind.GetKind() != "Deployment" {
		list, err := schedulingv1.NewControllerRevisionServiceClient(c.Conn()).ListControllerRevisions(ctx,
			&schedulingv1.ListControllerRevisionsRequest{Namespace: t.Namespace()})
		for _, r := range list.GetItems() {
			if object.ControllerOf(r).GetUid() == uid {
				template := r.GetData().GetFields()["spec"].GetStructValue().GetFields()["template"].GetStructValue()
				out[int(r.GetRevision())] = revision{template, r.GetMetadata().GetAnnotations()[changeCause]}
			}
		}
		return out, err
	}
	list, err := schedulingv1.NewReplicaSetServiceClient(c.Conn()).ListReplicaSets(ctx,
		&schedulingv1.ListReplicaSetsRequest{Namespace: t.Namespace()})
	for _, s := range list.GetItems() {
		annotations := s.GetMetadata().GetAnnotations()
		n, err := strconv.Atoi(annotations[revisionAnnotation])
		if err == nil && object.ControllerOf(s).GetUid() == uid {
			out[n] = revision{s.GetSpec().GetTemplate(), annotations[changeCause]}
		}
	}
	return out, err
}

// rollBack takes an object back to an earlier revision.
func rollBack(ctx context.Context, c *client.Client, t target.Item, to int32) (err error) {
	switch namespace, name := t.Namespace(), t.Name(); t.Kind.GetKind() {
	case statefulSet:
		_, err = schedulingv1.NewStatefulSetServiceClient(c.Conn()).RollbackStatefulSet(ctx,
			&schedulingv1.RollbackStatefulSetRequest{Namespace: namespace, Name: name, Revision: to})
	case daemonSet:
		_, err = schedulingv1.NewDaemonSetServiceClient(c.Conn()).RollbackDaemonSet(ctx,
			&schedulingv1.RollbackDaemonSetRequest{Namespace: namespace, Name: name, Revision: to})
	default:
		_, err = schedulingv1.NewDeploymentServiceClient(c.Conn()).RollbackDeployment(ctx,
			&schedulingv1.RollbackDeploymentRequest{Namespace: namespace, Name: name, Revision: to})
	}
	return err
}

func newUndo(e *session.Env) *cobra.Command {
	var to int32
	var config, reason string
	cmd := &cobra.Command{
		Use:   "undo (TYPE NAME | TYPE/NAME) [--to-revision N | --to-config CONFIG]",
		Short: "Roll a deployment, stateful set or daemon set back to an earlier revision, or a pool to its last good configuration",
		Long: `Roll a deployment, stateful set or daemon set back to an earlier revision.

The nodes of a machine config pool go back to the last configuration that all of them had. If that is what their
machine configs say, too, they go back to the one that they all had before it. The pool is then held there: changes of
machine configs have no effect on its nodes until rollout resume.`,
		Example: `  windlass rollout undo deployment/hello
  windlass rollout undo machineconfigpool/worker --reason 'chronyd loses its peers'`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to < 0 {
				return errors.New("--to-revision must be 0 or more")
			}
			return e.WithClient(func(c *client.Client) error {
				list, err := renewed(cmd.Context(), e, c, args, "Deployment", statefulSet, daemonSet, pools)
				var failed failure.List
				failed.Add(err)
				for _, t := range list {
					switch ofPool := t.Kind.GetKind() == pools; {
					case ofPool && to > 0:
						failed.Add(fmt.Errorf("%s: its configurations have names: specify --to-config", t))
						continue
					case ofPool:
						failed.Add(hold(cmd.Context(), e, c, t, config, reason))
						continue
					case config != "" || reason != "":
						failed.Add(fmt.Errorf("%s: --to-config and --reason are for pools", t))
						continue
					}
					err := rollBack(cmd.Context(), c, t, to)
					if err == nil {
						_, err = fmt.Fprintln(e.Out, t, "rolled back")
					}
					failed.Add(err)
				}
				return failed.Err()
			})
		},
	}
	cmd.Flags().Int32Var(&to, "to-revision", 0, "revision to roll back to; 0 means the previous revision")
	cmd.Flags().StringVar(&config, "to-config", "", "rendered configuration that a pool goes back to")
	cmd.Flags().StringVar(&reason, "reason", "", "why a pool is held, for others")
	return cmd
}

func newPause(e *session.Env) *cobra.Command {
	var flags pause.Flags
	cmd := &cobra.Command{
		Use:   "pause (TYPE NAME... | TYPE/NAME...) [--reason TEXT [--for DURATION | --until TIME]]",
		Short: "Pause the rollout of a deployment or a machine config pool",
		Long: `Pause the rollout of a deployment or a machine config pool.

No further node of a pool changes to its configuration; nodes that have begun go on. Certificates are renewed all the
same. With --reason, everyone is shown why the pool waits, since when and who paused it, and it may end by itself.`,
		Example: `  windlass rollout pause deployment/hello
  windlass rollout pause machineconfigpool/worker --reason "trade fair" --for 48h`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			paused := map[string]any{"paused": true}
			if !flags.Given() {
				return patchRenewed(cmd.Context(), e, args, "paused", func(string) map[string]any {
					return map[string]any{"spec": paused}
				}, "Deployment", pools)
			}
			patch, err := flags.Patch("nodes", time.Now())
			if err != nil {
				return err
			}
			done := "paused"
			if until, ok := patch["until"].(string); ok {
				done += " until " + until
			}
			return patchRenewed(cmd.Context(), e, args, done, func(string) map[string]any {
				return map[string]any{"spec": map[string]any{"pause": patch, "paused": nil}} // that one has no end
			}, pools)
		},
	}
	flags.Add(cmd.Flags(), "why a pool is paused, for others; required with --for and --until")
	return cmd
}

func newResume(e *session.Env) *cobra.Command {
	var now bool
	var reason string
	cmd := &cobra.Command{
		Use:   "resume (TYPE NAME... | TYPE/NAME...) [--now --reason TEXT]",
		Short: "Resume the rollout of a paused deployment, or of a machine config pool that is paused or held",
		Long: `Resume the rollout of a paused deployment, or of a machine config pool that is paused or held.

With --now, nodes of a pool change to its present configuration also while no maintenance window is open. A pool that is
held at a former configuration stays so.`,
		Example: `  windlass rollout resume deployment/hello
  windlass rollout resume machineconfigpool/worker --now --reason CVE-2026-1234`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case now && reason == "":
				return errors.New("--now needs --reason: it is noted why nodes wait for no maintenance window")
			case reason != "" && !now:
				return errors.New("--reason is only for --now")
			}
			if now {
				return e.WithClient(func(c *client.Client) error { return waiveWindows(cmd.Context(), e, c, args, reason) })
			}
			return patchRenewed(cmd.Context(), e, args, "resumed", func(kind string) map[string]any {
				if kind == pools {
					return map[string]any{"spec": map[string]any{"paused": nil, "pause": nil, "pin": nil}}
				}
				return map[string]any{"spec": map[string]any{"paused": nil}}
			}, "Deployment", pools)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false,
		"wait for no maintenance window on the way to the pool's present configuration")
	cmd.Flags().StringVar(&reason, "reason", "", "why a pool waits for no maintenance window, for others")
	return cmd
}

func newRestart(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "restart (TYPE NAME... | TYPE/NAME...)",
		Short:             "Restart all pods of deployments, stateful sets and daemon sets, or replace all control-plane machines",
		ValidArgsFunction: target.CompleteObjects(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return patchRenewed(cmd.Context(), e, args, "restarted",
				func(kind string) map[string]any { return restartPatch(kind, time.Now()) },
				"Deployment", statefulSet, daemonSet, controlPlane)
		},
	}
}

// restartPatch returns the merge patch that has an object of a kind replace what it made from its template before at.
func restartPatch(kind string, at time.Time) map[string]any {
	mark := map[string]any{"kubectl.kubernetes.io/restartedAt": at.Format(time.RFC3339)}
	template := map[string]any{"metadata": map[string]any{"annotations": mark}}
	if kind == controlPlane {
		template = map[string]any{"machines_v1beta1_machine_openshift_io": template}
	}
	return map[string]any{"spec": map[string]any{"template": template}}
}

// controlPlane is the kind whose machines a restart replaces, one at a time.
const controlPlane = "ControlPlaneMachineSet"

const (
	statefulSet = "StatefulSet"
	daemonSet   = "DaemonSet"
)

// patchRenewed patches each object that arguments name; patch returns the patch of an object of a kind.
func patchRenewed(ctx context.Context, e *session.Env, args []string, done string,
	patch func(kind string) map[string]any, kinds ...string,
) error {
	return e.WithClient(func(c *client.Client) error {
		list, err := renewed(ctx, e, c, args, kinds...)
		var failed failure.List
		failed.Add(err)
		for _, t := range list {
			body, err := json.Marshal(patch(t.Kind.GetKind()))
			if err == nil {
				_, err = c.Patch(ctx, t.Kind, t.Namespace(), t.Name(), manifest.MergePatch, body, false)
			}
			if err == nil {
				_, err = fmt.Fprintln(e.Out, t, done)
			}
			failed.Add(err)
		}
		return failed.Err()
	})
}
