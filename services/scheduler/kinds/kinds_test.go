package kinds

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

type noNodes struct{}

func (noNodes) HasNode(name string) bool { return name != "gone" }

// tables returns tables that are followed, for callers who may not bind pods.
func tables(t *testing.T) *Tables {
	t.Helper()
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	out := New(Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{},
		MayBind: func(identity.Caller, string, string) bool { return false }, Policy: policy,
	})
	for _, k := range out.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// byUser returns the context of a user's request.
func byUser(t *testing.T) context.Context {
	return identity.WithCaller(t.Context(), identity.Caller{User: "bob"})
}

func podSpec(restart string) *schedulingv1.PodSpec {
	return &schedulingv1.PodSpec{RestartPolicy: restart, Containers: []*schedulingv1.Container{
		{Name: "main", Image: "pause"},
	}}
}

func template(app, restart string) *schedulingv1.PodTemplateSpec {
	return &schedulingv1.PodTemplateSpec{
		Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:     podSpec(restart),
	}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func meta(name string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: "default", Name: name}
}

// wrong returns the paths of the fields that an error complains of.
func wrong(err error) []string {
	fields, _ := rpcerr.Fields(err)
	var out []string
	for _, f := range fields {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestWhatCannotBeCreatedSaysWhichFieldIsWrong(t *testing.T) {
	tab := tables(t)
	ctx := byUser(t)
	create := map[string]func() error{
		"spec.template.metadata.labels": func() error {
			_, err := tab.Deployments.Create(ctx, &schedulingv1.Deployment{
				Metadata: meta("d"), Spec: &schedulingv1.DeploymentSpec{Selector: selector("a"), Template: template("b", "")},
			})
			return err
		},
		"spec.selector": func() error {
			_, err := tab.ReplicaSets.Create(ctx, &schedulingv1.ReplicaSet{
				Metadata: meta("s"), Spec: &schedulingv1.ReplicaSetSpec{Template: template("a", "")},
			})
			return err
		},
		"spec.template.spec.containers": func() error {
			d := template("a", "")
			d.Spec.Containers = nil
			_, err := tab.DaemonSets.Create(ctx, &schedulingv1.DaemonSet{Metadata: meta("s"), Spec: &schedulingv1.DaemonSetSpec{
				Selector: selector("a"), Template: d,
			}})
			return err
		},
		"spec.template.spec.restartPolicy": func() error {
			_,
				err := tab.Jobs.Create(ctx, &schedulingv1.Job{Metadata: meta("j"), Spec: &schedulingv1.JobSpec{
				Template: template("a", ""),
			}})
			return err
		},
		"spec.template": func() error {
			_, err := tab.StatefulSets.Create(ctx, &schedulingv1.StatefulSet{
				Metadata: meta("s"), Spec: &schedulingv1.StatefulSetSpec{Selector: selector("a")},
			})
			return err
		},
		"spec": func() error {
			_, err := tab.Budgets.Create(ctx, &schedulingv1.PodDisruptionBudget{
				Metadata: meta("b"), Spec: &schedulingv1.PodDisruptionBudgetSpec{
					MinAvailable: structpb.NewNumberValue(1), MaxUnavailable: structpb.NewNumberValue(1),
				},
			})
			return err
		},
		"spec.ports": func() error {
			_, err := tab.Services.Create(ctx, &schedulingv1.Service{Metadata: meta("s")})
			return err
		},
		"spec.containers": func() error {
			_, err := tab.Pods.Create(ctx, &schedulingv1.Pod{Metadata: meta("p")})
			return err
		},
	}
	for path, f := range create {
		if err := f(); !slices.Equal(wrong(err), []string{path}) {
			t.Errorf("want %s wrong, got %v", path, err)
		}
	}
}

func TestLimitsThatMeanNothingAreRefused(t *testing.T) {
	tab := tables(t)
	text, number := structpb.NewStringValue, structpb.NewNumberValue
	budget := func(least, most *structpb.Value) error {
		_, err := tab.Budgets.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{GenerateName: "b-", Namespace: "default"}, Spec: &schedulingv1.PodDisruptionBudgetSpec{
				MinAvailable: least, MaxUnavailable: most,
			},
		})
		return err
	}
	deployment := func(surge, missing *structpb.Value) error {
		_, err := tab.Deployments.Create(t.Context(), &schedulingv1.Deployment{
			Metadata: &metav1.ObjectMeta{GenerateName: "d-", Namespace: "default"},
			Spec: &schedulingv1.DeploymentSpec{
				Selector: selector("a"), Template: template("a", ""),
				Strategy: &schedulingv1.DeploymentStrategy{
					Type: "RollingUpdate", RollingUpdate: &schedulingv1.RollingUpdateDeployment{
						MaxSurge: surge, MaxUnavailable: missing,
					},
				},
			},
		})
		return err
	}
	daemons := func(surge, missing *structpb.Value) error {
		_, err := tab.DaemonSets.Create(t.Context(), &schedulingv1.DaemonSet{
			Metadata: &metav1.ObjectMeta{GenerateName: "s-", Namespace: "default"},
			Spec: &schedulingv1.DaemonSetSpec{
				Selector: selector("a"), Template: template("a", ""),
				UpdateStrategy: &schedulingv1.DaemonSetUpdateStrategy{
					Type: "RollingUpdate", RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
						MaxSurge: surge, MaxUnavailable: missing,
					},
				},
			},
		})
		return err
	}
	const rolling = "spec.strategy.rollingUpdate."
	for _, c := range []struct {
		what string
		err  error
		want []string
	}{
		{"all must stay", budget(text("100%"), nil), nil},
		{"more than all must stay", budget(text("101%"), nil), []string{"spec.minAvailable"}},
		{"more than all may go", budget(nil, text("101%")), []string{"spec.maxUnavailable"}},
		{"more than any number must stay", budget(text("99999999999999999999"), nil), []string{"spec.minAvailable"}},
		{"more than any count holds", budget(number(1<<31), nil), []string{"spec.minAvailable"}},
		{"twice as many may be there", deployment(text("200%"), text("100%")), nil},
		{"more than all may be missing", deployment(nil, text("101%")), []string{rolling + "maxUnavailable"}},
		{"no number can be read", deployment(text("99999999999999999999%"), nil), []string{rolling + "maxSurge"}},
		{
			"more than all daemons may be missing", daemons(nil, text("101%")),
			[]string{"spec.updateStrategy.rollingUpdate.maxUnavailable"},
		},
		{
			"more than two on each node", daemons(text("101%"), number(0)),
			[]string{"spec.updateStrategy.rollingUpdate.maxSurge"},
		},
		{"daemons may be beside each other", daemons(text("10%"), number(0)), nil},
		{"daemons may be missing", daemons(number(0), text("10%")), nil},
		{
			"daemons may be both", daemons(number(1), text("10%")),
			[]string{"spec.updateStrategy.rollingUpdate.maxSurge"},
		},
		{
			"one may be missing unless that is ruled out", daemons(number(1), nil),
			[]string{"spec.updateStrategy.rollingUpdate.maxSurge"},
		},
		{
			"daemons can never move", daemons(text("0%"), number(0)),
			[]string{"spec.updateStrategy.rollingUpdate.maxUnavailable"},
		},
	} {
		if got := wrong(c.err); !slices.Equal(got, c.want) || (c.err == nil) != (c.want == nil) {
			t.Errorf("%s: wrong are %v, want %v: %v", c.what, got, c.want, c.err)
		}
	}
}

func TestWrongLabelsAreNamedInOrder(t *testing.T) {
	pairs := map[string]string{}
	var want []string
	for c := 'a'; c <= 'j'; c++ {
		pairs[string(c)] = "no value!"
		want = append(want, "spec.selector['"+string(c)+"']")
	}
	var got []string
	for _, f := range labelPairFaults("spec.selector", pairs) {
		got = append(got, f.Path)
	}
	if !slices.Equal(got, want) {
		t.Errorf("wrong fields %v, want %v", got, want)
	}
}

func TestDefaultsAreThoseThatKubernetesUsersExpect(t *testing.T) {
	tab := tables(t)
	d, err := tab.Deployments.Create(t.Context(), &schedulingv1.Deployment{
		Metadata: meta("d"), Spec: &schedulingv1.DeploymentSpec{Selector: selector("a"), Template: template("a", "")},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := d.GetSpec()
	if s.GetReplicas() != 1 || s.GetRevisionHistoryLimit() != 10 || s.GetProgressDeadlineSeconds() != 600 ||
		s.GetStrategy().GetType() != "RollingUpdate" ||
		s.GetStrategy().GetRollingUpdate().GetMaxSurge().GetStringValue() != "25%" ||
		s.GetTemplate().GetSpec().GetRestartPolicy() != "Always" {
		t.Errorf("deployment %v", d)
	}
	j, err := tab.Jobs.Create(t.Context(), &schedulingv1.Job{Metadata: meta("j"), Spec: &schedulingv1.JobSpec{
		Template: template("a", "Never"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	uid, labels := j.GetMetadata().GetUid(), j.GetSpec().GetTemplate().GetMetadata().GetLabels()
	if j.GetSpec().GetSelector().GetMatchLabels()["batch.kubernetes.io/controller-uid"] != uid ||
		labels["batch.kubernetes.io/job-name"] != "j" || j.GetSpec().GetBackoffLimit() != 6 ||
		j.GetSpec().GetCompletions() != 1 {
		t.Errorf("job %v", j)
	}
	rc, err := tab.ReplicationControllers.Create(t.Context(), &schedulingv1.ReplicationController{
		Metadata: meta("c"), Spec: &schedulingv1.ReplicationControllerSpec{Template: template("a", "")},
	})
	if err != nil || rc.GetSpec().GetSelector()["app"] != "a" || rc.GetMetadata().GetLabels()["app"] != "a" {
		t.Errorf("replication controller %v, %v", rc, err)
	}
}

func TestOfALivePodOnlySomeFieldsChange(t *testing.T) {
	tab := tables(t)
	ctx := byUser(t)
	if _, err := tab.Pods.Create(ctx, &schedulingv1.Pod{Metadata: meta("p"), Spec: podSpec("")}); err != nil {
		t.Fatal(err)
	}
	change := func(f func(s *schedulingv1.PodSpec)) error {
		_, err := tab.Pods.Modify(ctx, object.Key{Namespace: "default", Name: "p"}, func(p *schedulingv1.Pod) error {
			f(p.Spec)
			return nil
		})
		return err
	}
	for what, f := range map[string]func(s *schedulingv1.PodSpec){
		"image":        func(s *schedulingv1.PodSpec) { s.Containers[0].Image = "pause:2" },
		"tolerations":  func(s *schedulingv1.PodSpec) { s.Tolerations = nil },
		"the deadline": func(s *schedulingv1.PodSpec) { s.ActiveDeadlineSeconds = proto.Int32(60) },
	} {
		if err := change(f); err != nil {
			t.Errorf("change of %s = %v", what, err)
		}
	}
	for path, f := range map[string]func(s *schedulingv1.PodSpec){
		"spec":                       func(s *schedulingv1.PodSpec) { s.Containers[0].Args = []string{"x"} },
		"spec.activeDeadlineSeconds": func(s *schedulingv1.PodSpec) { s.ActiveDeadlineSeconds = proto.Int32(90) },
		"spec.nodeName":              func(s *schedulingv1.PodSpec) { s.NodeName = "node-1" },
	} {
		if err := change(f); !slices.Contains(wrong(err), path) {
			t.Errorf("change of %s = %v", path, err)
		}
	}
}

func TestAPodStaysForItsAgentOnlyWhereThereIsOne(t *testing.T) {
	tab := tables(t)
	for name, c := range map[string]struct {
		pod   *schedulingv1.Pod
		asked *int32
		grace int32
		stays bool
	}{
		"one that is bound gets what it says": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: proto.Int32(7)}}, nil, 7,
			true,
		},
		"or what is asked for": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: proto.Int32(7)}},
			proto.Int32(3), 3, true,
		},
		"at least a second": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: proto.Int32(0)}}, nil, 1,
			true,
		},
		"0 is at once": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n"}}, proto.Int32(0),
			0, false,
		},
		"one that is not bound has no agent to end it": {&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{}}, nil, 0, false},
		"nor one whose node is gone": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "gone"}}, nil, 0,
			false,
		},
		"one that has ended goes": {
			&schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n"}, Status: &schedulingv1.PodStatus{
				Phase: proto.String("Failed"),
			}}, nil, 0, false,
		},
	} {
		if grace, stays := tab.podGrace(c.pod, c.asked); grace != c.grace || stays != c.stays {
			t.Errorf("%s: %d, %v; want %d, %v", name, grace, stays, c.grace, c.stays)
		}
	}
}

// TestOneHeldByAFinalizerGoesWithIt confirms the end of a pod before its finalizer is taken off.
func TestOneHeldByAFinalizerGoesWithIt(t *testing.T) {
	tab := tables(t)
	ctx := byUser(t)
	pod := &schedulingv1.Pod{Metadata: meta("p"), Spec: podSpec("")}
	pod.Metadata.Finalizers = []string{"example.com/hold"}
	if _, err := tab.Pods.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	key := object.Key{Namespace: "default", Name: "p"}
	if _, err := tab.Pods.Modify(ctx, key, func(p *schedulingv1.Pod) error {
		return tab.Bind(p, "", "node-1")
	}, resource.WriteOptions{Own: true}); err != nil {
		t.Fatal(err)
	}
	for _, grace := range []*int32{nil, proto.Int32(0)} {
		if _, err := tab.Pods.Delete(ctx, "default", "p", nil, resource.WriteOptions{Grace: grace}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tab.Pods.Modify(ctx, key, func(p *schedulingv1.Pod) error {
		p.Metadata.Finalizers = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Pods.Get(ctx, "default", "p"); status.Code(err) != codes.NotFound {
		t.Errorf("the pod is still there: %v", err)
	}
}

// served is a service whose methods are called directly.
type served struct {
	desc *grpc.ServiceDesc
	impl any
}

func (s *served) RegisterService(desc *grpc.ServiceDesc, impl any) { s.desc, s.impl = desc, impl }

func (s *served) call(ctx context.Context, name string, r proto.Message) error {
	i := slices.IndexFunc(s.desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	_, err := s.desc.Methods[i].Handler(s.impl, ctx, func(m any) error {
		proto.Merge(m.(proto.Message), r)
		return nil
	}, nil)
	return err
}

func TestWhatLeavesItsDependentsAloneGoesOnlyAsItWasRead(t *testing.T) {
	tab := tables(t)
	var s served
	if err := resource.Register(&s, &schedulingv1.ReplicaSetService_ServiceDesc, nil, tab.ReplicaSets); err != nil {
		t.Fatal(err)
	}
	set, err := tab.ReplicaSets.Create(t.Context(), &schedulingv1.ReplicaSet{
		Metadata: meta("s"), Spec: &schedulingv1.ReplicaSetSpec{Selector: selector("a"), Template: template("a", "")},
	})
	if err != nil {
		t.Fatal(err)
	}
	remove := func(version string) error {
		return s.call(t.Context(), "DeleteReplicaSet", &schedulingv1.DeleteReplicaSetRequest{
			Namespace: "default", Name: "s", PropagationPolicy: "Orphan", Preconditions: &metav1.Preconditions{
				ResourceVersion: version,
			},
		})
	}
	if err := remove("1"); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
		t.Errorf("Delete of an earlier version = %v", err)
	}
	if now, err := tab.ReplicaSets.Get(t.Context(), "default", "s"); err != nil || !proto.Equal(now, set) {
		t.Errorf("what was refused changed it: %v, %v", now, err)
	}
	if err := remove(set.GetMetadata().GetResourceVersion()); err != nil {
		t.Errorf("Delete of the version that was read = %v", err)
	}
	if now, err := tab.ReplicaSets.Get(t.Context(), "default", "s"); err != nil || !object.Deleting(now) ||
		!slices.Equal(now.GetMetadata().GetFinalizers(), []string{object.OrphanFinalizer}) {
		t.Errorf("afterwards it is %v, %v", now.GetMetadata(), err)
	}
}

func TestSettingsSayWhatOfThemIsNotInForce(t *testing.T) {
	tab := tables(t)
	p, err := tab.Policies.Create(t.Context(), &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{
		{Name: "PodFitsResources"},
	}})
	if err != nil || object.FindCondition(p.GetStatus().GetConditions(), "InForce").GetStatus() != "True" {
		t.Errorf("policy %v, %v", p, err)
	}
	m, err := tab.MasterConfigs.Create(t.Context(), &schedulingv1.KubernetesMasterConfig{
		KubernetesMasterConfig: &schedulingv1.KubernetesMasterSettings{
			ControllerArguments: map[string]*structpb.ListValue{"node-monitor-period": {}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := object.FindCondition(m.GetStatus().GetConditions(), "InForce"); c.GetStatus() != "False" ||
		!strings.Contains(c.GetMessage(), "controllerArguments['node-monitor-period']") {
		t.Errorf("condition %v", c)
	}
}

// listener is the transport of a call; it receives the warnings that go with the answer.
type listener struct{ heard []string }

func (l *listener) Method() string               { return "" }
func (l *listener) SendHeader(metadata.MD) error { return nil }
func (l *listener) SetTrailer(metadata.MD) error { return nil }
func (l *listener) SetHeader(md metadata.MD) error {
	l.heard = append(l.heard, md.Get(rpcerr.WarningKey)...)
	return nil
}

func TestWhatIsAcceptedAndNotInForceIsWarnedOf(t *testing.T) {
	tab := tables(t)
	odd := template("a", "")
	odd.Spec.Tolerations = []*schedulingv1.Toleration{
		{Key: "disktype", Operator: "Exists", Effect: "NoSchedule", TolerationSeconds: proto.Int32(3600)},
	}
	seconds := "spec.template.spec.tolerations[0].tolerationSeconds: means nothing with the effect NoSchedule"
	create := map[string]struct {
		do   func(ctx context.Context) error
		want []string
	}{
		"seconds in the template of a deployment": {func(ctx context.Context) error {
			_, err := tab.Deployments.Create(ctx, &schedulingv1.Deployment{
				Metadata: meta("d"), Spec: &schedulingv1.DeploymentSpec{Selector: selector("a"), Template: odd},
			})
			return err
		}, []string{seconds}},
		"a daemon set that surges": {
			func(ctx context.Context) error {
				_, err := tab.DaemonSets.Create(ctx, &schedulingv1.DaemonSet{Metadata: meta("s"), Spec: &schedulingv1.DaemonSetSpec{
					Selector: selector("a"), Template: odd, UpdateStrategy: &schedulingv1.DaemonSetUpdateStrategy{
						Type: "RollingUpdate", RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
							MaxSurge: structpb.NewStringValue("10%"), MaxUnavailable: structpb.NewNumberValue(0),
						},
					},
				}})
				return err
			},
			[]string{seconds},
		},
		"a stateful set": {func(ctx context.Context) error {
			_, err := tab.StatefulSets.Create(ctx, &schedulingv1.StatefulSet{
				Metadata: meta("s"), Spec: &schedulingv1.StatefulSetSpec{Selector: selector("a"), Template: template("a", "")},
			})
			return err
		}, nil},
		"nothing is odd about it": {func(ctx context.Context) error {
			_, err := tab.DaemonSets.Create(ctx, &schedulingv1.DaemonSet{Metadata: meta("t"), Spec: &schedulingv1.DaemonSetSpec{
				Selector: selector("a"), Template: template("a", ""),
			}})
			return err
		}, nil},
		"what was said at its creation is not said again": {func(ctx context.Context) error {
			if _, err := tab.ReplicaSets.Create(t.Context(), &schedulingv1.ReplicaSet{
				Metadata: meta("r"), Spec: &schedulingv1.ReplicaSetSpec{Selector: selector("a"), Template: odd},
			}); err != nil {
				return err
			}
			_, err := tab.ReplicaSets.Modify(ctx, object.Key{Namespace: "default", Name: "r"},
				func(s *schedulingv1.ReplicaSet) error {
					s.Spec.Replicas = proto.Int32(2)
					return nil
				})
			return err
		}, nil},
	}
	for what, c := range create {
		var l listener
		if err := c.do(grpc.NewContextWithServerTransportStream(t.Context(), &l)); err != nil ||
			!slices.Equal(l.heard, c.want) {
			t.Errorf("%s: warnings %q, want %q; %v", what, l.heard, c.want, err)
		}
	}
}

func TestATemplateIsRefusedForWhatIsNotInForce(t *testing.T) {
	tab := tables(t)
	probed := template("a", "")
	probed.Spec.SecurityContext = &structpb.Struct{Fields: map[string]*structpb.Value{
		"runAsUser": structpb.NewNumberValue(-5),
	}}
	field := []string{"spec.template.spec.securityContext.runAsUser"}
	_, err := tab.Deployments.Create(t.Context(), &schedulingv1.Deployment{
		Metadata: meta("d"), Spec: &schedulingv1.DeploymentSpec{Selector: selector("a"), Template: probed},
	})
	if !slices.Equal(wrong(err), field) {
		t.Errorf("Deployment = %v", err)
	}
	_, err = tab.DaemonSets.Create(t.Context(), &schedulingv1.DaemonSet{
		Metadata: meta("d"), Spec: &schedulingv1.DaemonSetSpec{Selector: selector("a"), Template: probed},
	})
	if !slices.Equal(wrong(err), field) {
		t.Errorf("DaemonSet = %v", err)
	}
	_, err = tab.Pods.Create(t.Context(), &schedulingv1.Pod{Metadata: meta("p"), Spec: probed.Spec})
	if !slices.Equal(wrong(err), []string{"spec.securityContext.runAsUser"}) {
		t.Errorf("Pod = %v", err)
	}
}

func TestAGuardThatGuardsNothingIsRefused(t *testing.T) {
	tab := tables(t)
	plugins := &schedulingv1.AdmissionPlugins{PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
		"PodNodeConstraints": {
			Configuration: &structpb.Struct{
				Fields: map[string]*structpb.Value{"nodeSelectorLabelBlacklist": structpb.NewStringValue("region")},
			},
		},
	}}
	const field = "admissionConfig.pluginConfig['PodNodeConstraints'].configuration.nodeSelectorLabelBlacklist"
	if _, err := tab.AdmissionConfigs.Create(t.Context(), &schedulingv1.AdmissionConfig{
		AdmissionConfig: plugins,
	}); !slices.Equal(wrong(err), []string{field}) {
		t.Errorf("AdmissionConfig = %v", err)
	}
	if _, err := tab.MasterConfigs.Create(t.Context(), &schedulingv1.KubernetesMasterConfig{
		KubernetesMasterConfig: &schedulingv1.KubernetesMasterSettings{AdmissionConfig: plugins},
	}); !slices.Equal(wrong(err), []string{"kubernetesMasterConfig." + field}) {
		t.Errorf("KubernetesMasterConfig = %v", err)
	}
}

func TestPodNodeConstraintsHoldForPodsAndTemplates(t *testing.T) {
	tab := tables(t)
	ctx := byUser(t)
	if _, err := tab.AdmissionConfigs.Create(ctx, &schedulingv1.AdmissionConfig{
		AdmissionConfig: &schedulingv1.AdmissionPlugins{
			PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
				"PodNodeConstraints": {Configuration: &structpb.Struct{}},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	direct := template("a", "")
	direct.Spec.NodeName = "node-1"
	if _, err := tab.Pods.Create(ctx, &schedulingv1.Pod{Metadata: meta("p"), Spec: direct.Spec}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("pod = %v", err)
	}
	set := &schedulingv1.ReplicaSet{Metadata: meta("s"), Spec: &schedulingv1.ReplicaSetSpec{
		Selector: selector("a"),
		Template: direct,
	}}
	if _, err := tab.ReplicaSets.Create(ctx, set); status.Code(err) != codes.PermissionDenied {
		t.Errorf("replica set = %v", err)
	}
	if _, err := tab.ReplicaSets.Create(ctx, set, resource.WriteOptions{Own: true}); err != nil {
		t.Errorf("replica set of the service itself = %v", err)
	}
}

func TestARoleHasABoundedNumberOfRights(t *testing.T) {
	tab := tables(t)
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("x%d", i))
		}
		return out
	}
	rule := func(verbs, resources, names int) *rbacv1.PolicyRule {
		return &rbacv1.PolicyRule{
			Verbs: many(verbs), ApiGroups: []string{""}, Resources: many(resources), ResourceNames: many(names),
		}
	}
	for name, tt := range map[string]struct {
		rules []*rbacv1.PolicyRule
		want  []string
	}{
		"at the limit":              {[]*rbacv1.PolicyRule{rule(2, 2, 1023), rule(4, 1, 0)}, nil},
		"one more":                  {[]*rbacv1.PolicyRule{rule(2, 2, 1023), rule(5, 1, 0)}, []string{"rules[1]"}},
		"a rule without a verb":     {[]*rbacv1.PolicyRule{rule(1, 1, 0), rule(0, 1, 0)}, []string{"rules[1].verbs"}},
		"a rule without a resource": {[]*rbacv1.PolicyRule{rule(1, 0, 0)}, []string{"rules[0].resources"}},
	} {
		_, err := tab.ClusterRoles.Create(t.Context(), &rbacv1.ClusterRole{
			Metadata: &metav1.ObjectMeta{GenerateName: "r"}, Rules: tt.rules,
		})
		if got := wrong(err); !slices.Equal(got, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want the fields %q", name, err, tt.want)
		}
	}
}

func TestABindingKeepsItsRole(t *testing.T) {
	tab := tables(t)
	ref := func(kind, name string) *rbacv1.RoleRef { return &rbacv1.RoleRef{Kind: kind, Name: name} }
	_, err := tab.ClusterRoleBindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		Metadata: &metav1.ObjectMeta{Name: "b"}, RoleRef: ref("Role", "r"),
	})
	if !slices.Equal(wrong(err), []string{"roleRef.kind"}) {
		t.Errorf("a ClusterRoleBinding of a Role: %v", err)
	}
	b, err := tab.RoleBindings.Create(t.Context(), &rbacv1.RoleBinding{
		Metadata: meta("b"), RoleRef: ref("Role", "r"), Subjects: []*rbacv1.Subject{{Kind: "User", Name: "dora"}},
	})
	if err != nil || b.GetRoleRef().GetApiGroup() != identity.RolesGroup ||
		b.GetSubjects()[0].GetApiGroup() != identity.RolesGroup {
		t.Fatalf("a RoleBinding without API groups: %v, %v", b, err)
	}
	b.Subjects = append(b.Subjects, &rbacv1.Subject{Kind: "ServiceAccount", Name: "s"})
	if _, err = tab.RoleBindings.Update(t.Context(), b); !slices.Equal(wrong(err), []string{"subjects[1].namespace"}) {
		t.Errorf("a service account without a namespace: %v", err)
	}
	b.Subjects[1] = &rbacv1.Subject{Kind: "ServiceAccount", Namespace: "a:b", Name: "c:d", ApiGroup: identity.RolesGroup}
	if _, err = tab.RoleBindings.Update(t.Context(), b); !slices.Equal(wrong(err), []string{
		"subjects[1].apiGroup", "subjects[1].name", "subjects[1].namespace",
	}) {
		t.Errorf("a service account with odd characters: %v", err)
	}
	b.Subjects[1] = &rbacv1.Subject{Kind: "Group", Name: "s", Namespace: "default"}
	if _, err = tab.RoleBindings.Update(t.Context(), b); !slices.Equal(wrong(err), []string{"subjects[1].namespace"}) {
		t.Errorf("a group with a namespace: %v", err)
	}
	b.Subjects[1].Namespace = ""
	if b, err = tab.RoleBindings.Update(t.Context(), b); err != nil || len(b.GetSubjects()) != 2 {
		t.Errorf("another subject: %v", err)
	}
	b.RoleRef.Kind = "ClusterRole"
	if _, err = tab.RoleBindings.Update(t.Context(), b); !slices.Equal(wrong(err), []string{"roleRef"}) {
		t.Errorf("another role: %v", err)
	}
}

// TestNothingIsGrantedBeforeTheStoredRolesAreRead writes with rights that may be in them.
func TestNothingIsGrantedBeforeTheStoredRolesAreRead(t *testing.T) {
	tab := tables(t)
	tab.cfg.Policy.AwaitStored()
	ctx := identity.WithCaller(t.Context(), identity.Caller{User: "bob"})
	_, role := tab.Roles.Create(ctx, &rbacv1.Role{Metadata: meta("r"), Rules: []*rbacv1.PolicyRule{{
		Verbs: []string{"get"}, ApiGroups: []string{""}, Resources: []string{"pods"},
	}}})
	_, binding := tab.RoleBindings.Create(ctx, &rbacv1.RoleBinding{
		Metadata: meta("b"), RoleRef: &rbacv1.RoleRef{Kind: "ClusterRole", Name: "stored"},
	})
	for what, err := range map[string]error{"role": role, "binding": binding} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want UNAVAILABLE: it is not known yet what bob may grant", what, err)
		}
	}
}

// TestNoCallerGrantsMoreThanTheirOwnRights calls as a user who has rights on pods in one namespace, and the right to
// write roles there.
func TestNoCallerGrantsMoreThanTheirOwnRights(t *testing.T) {
	tab := tables(t)
	rule := func(group, verb, kind string, names ...string) *rbacv1.PolicyRule {
		return &rbacv1.PolicyRule{
			Verbs: []string{verb}, ApiGroups: []string{group}, Resources: []string{kind}, ResourceNames: names,
		}
	}
	user := func(name string) []*rbacv1.Subject { return []*rbacv1.Subject{{Kind: "User", Name: name}} }
	ref := func(kind, name string) *rbacv1.RoleRef { return &rbacv1.RoleRef{Kind: kind, Name: name} }
	tab.cfg.Policy.SetStored(identity.Stored{
		Roles: []*rbacv1.Role{
			{Metadata: meta("r"), Rules: []*rbacv1.PolicyRule{rule("", "get", "pods")}},
			{Metadata: meta("more"), Rules: []*rbacv1.PolicyRule{rule("", "delete", "pods")}},
			{Metadata: meta("trusted"), Rules: []*rbacv1.PolicyRule{
				rule(identity.RolesGroup, "escalate", "roles", "chosen"), rule(identity.RolesGroup, "bind", "roles", "more"),
				rule(identity.RolesGroup, "bind", "clusterroles", "later"),
			}},
		},
		RoleBindings: []*rbacv1.RoleBinding{
			{Metadata: meta("b"), RoleRef: ref("Role", "r"), Subjects: user("bob")},
			{Metadata: meta("t"), RoleRef: ref("Role", "trusted"), Subjects: user("tess")},
		},
	})
	as := func(name string) context.Context {
		return identity.WithCaller(t.Context(), identity.Caller{User: name})
	}
	role := func(by, name string, rules ...*rbacv1.PolicyRule) error {
		_, err := tab.Roles.Create(as(by), &rbacv1.Role{Metadata: meta(name), Rules: rules})
		return err
	}
	bound := func(by, name, kind, to string) error {
		_, err := tab.RoleBindings.Create(as(by), &rbacv1.RoleBinding{
			Metadata: meta(name), RoleRef: ref(kind, to), Subjects: user("eve"),
		})
		return err
	}
	if err := role("bob", "same", rule("", "get", "pods", "one")); err != nil {
		t.Errorf("a role with a part of one's own rights: %v", err)
	}
	same, err := tab.Roles.Get(t.Context(), "default", "same")
	if err != nil {
		t.Fatal(err)
	}
	same.Rules = append(same.Rules, rule("", "get", "secrets"))
	_, update := tab.Roles.Update(as("bob"), same)
	_, everywhere := tab.ClusterRoles.Create(as("bob"), &rbacv1.ClusterRole{
		Metadata: &metav1.ObjectMeta{Name: "everywhere"}, Rules: []*rbacv1.PolicyRule{rule("", "get", "pods")},
	})
	_, clusterBinding := tab.ClusterRoleBindings.Create(as("bob"), &rbacv1.ClusterRoleBinding{
		Metadata: &metav1.ObjectMeta{Name: "everywhere"}, RoleRef: ref("ClusterRole", "view"), Subjects: user("bob"),
	})
	for want, err := range map[string]error{
		"rules[1]: user \"bob\" may not delete pods in namespace": role("bob", "x", rule("", "get", "pods"),
			rule("", "delete", "pods")),
		"rules[0]: user \"bob\" may not * pods":       role("bob", "x", rule("", "*", "pods")),
		"rules[1]: user \"bob\" may not get secrets":  update,
		"rules[0]: user \"bob\" may not get pods":     everywhere,
		"rules[0]: user \"tess\" may not delete pods": role("tess", "x", rule("", "delete", "pods")),
		"roleRef: user \"bob\" may not delete pods":   bound("bob", "x", "Role", "more"),
		"roleRef: there is no ClusterRole \"later\"":  bound("bob", "x", "ClusterRole", "later"),
		"roleRef: user \"bob\"":                       clusterBinding,
	} {
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for what, err := range map[string]error{
		"a role of one's own rights":      bound("bob", "mine", "Role", "r"),
		"a role with the verb escalate":   role("tess", "chosen", rule("", "*", "*")),
		"a role with the verb bind":       bound("tess", "more", "Role", "more"),
		"a role that does not exist, too": bound("tess", "later", "ClusterRole", "later"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	mine, err := tab.RoleBindings.Get(t.Context(), "default", "more")
	if err != nil {
		t.Fatal(err)
	}
	mine.Metadata.Labels = map[string]string{"team": "a"}
	if mine, err = tab.RoleBindings.Update(as("bob"), mine); err != nil {
		t.Errorf("a label on a binding: %v", err)
	}
	mine.Subjects = append(mine.Subjects, user("bob")...)
	if _, err := tab.RoleBindings.Update(as("bob"), mine); status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob binds himself: %v", err)
	}
	_, err = tab.ClusterRoles.Create(identity.WithCaller(t.Context(), identity.Caller{
		User: "root", Groups: []string{identity.GroupMasters},
	}), &rbacv1.ClusterRole{Metadata: &metav1.ObjectMeta{Name: "view"}})
	if !slices.Equal(wrong(err), []string{"metadata.name"}) {
		t.Errorf("a role with a name of the policy file: %v", err)
	}
}
