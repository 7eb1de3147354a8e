package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// newCreateJob returns the command create job.
func newCreateJob(e *session.Env) *cobra.Command {
	var w change.Flags
	var from string
	cmd := &cobra.Command{
		Use:     "job NAME --from=cronjob/NAME",
		Short:   "Create a job from a cron job now, beside those of its schedule",
		Example: `  windlass create job backup-now --from=cronjob/backup`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.Settle(); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return createJob(cmd.Context(), e, c, args[0], from, &w) })
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the cron job to create it from, such as cronjob/backup")
	w.AddFlags(cmd.Flags())
	return cmd
}

func createJob(ctx context.Context, e *session.Env, c *client.Client, name, from string, w *change.Flags) error {
	if from == "" {
		return errors.New("the --from=cronjob/NAME flag is required")
	}
	found, err := target.Find(ctx, e, c, []string{from}, target.Selection{})
	if err != nil {
		return err
	}
	cron, ok := found[0].Object.(*schedulingv1.CronJob)
	if !ok {
		return fmt.Errorf("--from must name a cron job, such as cronjob/backup: %s is none", found[0])
	}
	kind, err := client.FindKind("job")
	if err != nil {
		return err
	}
	job := object.Object(jobFrom(cron, name))
	if !w.Client() {
		if job, err = c.Create(ctx, kind, job, w.Server()); err != nil {
			return err
		}
	}
	return w.Print(e.Out, kind, job, "created")
}

// jobFrom returns a job as a cron job has them. It belongs to the cron job, but is not one of its schedule. Source:
// kubectl create job --from.
func jobFrom(cron *schedulingv1.CronJob, name string) *schedulingv1.Job {
	t := cron.GetSpec().GetJobTemplate()
	annotations := map[string]string{"cronjob.kubernetes.io/instantiate": "manual"}
	maps.Copy(annotations, t.GetMetadata().GetAnnotations())
	owner := object.OwnedBy(cron)
	owner.BlockOwnerDeletion = nil
	return &schedulingv1.Job{
		ApiVersion: "batch/v1", Kind: "Job",
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: cron.GetMetadata().GetNamespace(), Labels: t.GetMetadata().GetLabels(),
			Annotations: annotations, OwnerReferences: []*metav1.OwnerReference{owner},
		},
		Spec: proto.CloneOf(t.GetSpec()),
	}
}
