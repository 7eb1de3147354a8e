package explain

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// suppositions are the flags that say what a pod's placement is explained for.
type suppositions struct {
	files     input.Files // the pod
	policy    string      // file
	scheduler string
	without   []string
	labels    []string
}

func (s *suppositions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVarP(&s.files.Names, "filename", "f", nil, "file or - with the pod to explain, which is not created")
	fs.StringVar(&s.scheduler, "for-scheduler", "", "explain the pod as if it named this scheduler")
	fs.StringVar(&s.policy, "with-policy", "", "file with a Policy to use in place of the live one")
	fs.StringSliceVar(&s.without, "without-node", nil, "explain the pod as if this node were gone; repeat for more")
	fs.StringArrayVar(&s.labels, "with-label", nil,
		"explain the pod as if a node had a label: NODE:KEY=VALUE; repeat for more")
}

// request returns what is asked of the scheduler; name is empty if the pod is in a file.
func (s *suppositions) request(ctx context.Context, e *session.Env, c *client.Client, name string) (
	*schedulingv1.ExplainPodRequest, error,
) {
	r := &schedulingv1.ExplainPodRequest{Namespace: e.PodNamespace(), Name: name, WithoutNodes: s.without}
	for _, l := range s.labels {
		node, label, _ := strings.Cut(l, ":")
		key, value, ok := strings.Cut(label, "=")
		if !ok || node == "" || key == "" {
			return nil, fmt.Errorf("--with-label %q: must be NODE:KEY=VALUE", l)
		}
		r.NodeLabels = append(r.NodeLabels, &schedulingv1.ExplainPodRequest_NodeLabels{
			Node: node, Labels: map[string]string{key: value},
		})
	}
	var err error
	if s.policy != "" {
		if r.Policy, err = readOne[*schedulingv1.Policy](e, input.Files{Names: []string{s.policy}}); err != nil {
			return nil, err
		}
	}
	if name == "" {
		if r.Pod, err = readOne[*schedulingv1.Pod](e, s.files); err != nil {
			return nil, err
		}
	} else if s.scheduler != "" {
		if r.Pod, err = schedulingv1.NewPodServiceClient(c.Conn()).GetPod(ctx, &schedulingv1.GetPodRequest{
			Namespace: r.Namespace, Name: name,
		}); err != nil {
			return nil, err
		}
	}
	if s.scheduler != "" {
		if r.Pod.Spec == nil {
			r.Pod.Spec = &schedulingv1.PodSpec{}
		}
		r.Pod.Spec.SchedulerName = s.scheduler
	}
	return r, nil
}

// readOne returns the one object of files, which must be of the kind T.
func readOne[T object.Object](e *session.Env, files input.Files) (T, error) {
	var none T
	documents, err := files.Read(e.In)
	if err != nil {
		return none, err
	}
	o, ok := documents[0].Object.(T)
	if !ok || len(documents) != 1 {
		return none, fmt.Errorf("%s: must contain one %s", strings.Join(files.Names, ", "),
			none.ProtoReflect().Descriptor().Name())
	}
	return o, input.Place(e, documents[0])
}

// explainPod prints the scheduler's evaluation of every node for a pod.
func explainPod(ctx context.Context, e *session.Env, c *client.Client, name string, s *suppositions,
	f printer.Format,
) error {
	q, err := s.request(ctx, e, c, name)
	if err != nil {
		return err
	}
	r, err := schedulingv1.NewPodServiceClient(c.Conn()).ExplainPod(ctx, q)
	if err != nil {
		return err
	}
	if f.Word != printer.Table {
		return printer.Message(e.Out, f, r)
	}
	return printExplanation(e.Out, explained{
		pod: cmp.Or(q.GetPod().GetMetadata().GetNamespace(), e.PodNamespace()) + "/" +
			cmp.Or(name, q.GetPod().GetMetadata().GetName()),
		supposed: s.texts(), now: time.Now(), ExplainPodResponse: r,
	})
}

// texts says what is supposed, each in a few words.
func (s *suppositions) texts() (out []string) {
	for _, node := range s.without {
		out = append(out, "node "+node+" were gone")
	}
	for _, l := range s.labels {
		node, label, _ := strings.Cut(l, ":")
		out = append(out, "node "+node+" had the label "+label)
	}
	if s.policy != "" {
		out = append(out, "the policy of "+s.policy+" were in force")
	}
	if s.scheduler != "" {
		out = append(out, "the pod named the scheduler "+s.scheduler)
	}
	return out
}
