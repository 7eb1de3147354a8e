package kinds

import (
	"slices"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestStatefulSetsAreRefusedWithThePathOfWhatIsWrong(t *testing.T) {
	tab := tables(t)
	ctx := byUser(t)
	strategy := func(fields map[string]any) func(*schedulingv1.StatefulSet) {
		return func(s *schedulingv1.StatefulSet) {
			var err error
			if s.Spec.UpdateStrategy, err = structpb.NewStruct(fields); err != nil {
				t.Fatal(err)
			}
		}
	}
	rolling := func(fields map[string]any) func(*schedulingv1.StatefulSet) {
		return strategy(map[string]any{"type": "RollingUpdate", "rollingUpdate": fields})
	}
	retain := func(deleted, scaled string) func(*schedulingv1.StatefulSet) {
		return func(s *schedulingv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &schedulingv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: deleted, WhenScaled: scaled,
			}
		}
	}
	const update = "spec.updateStrategy"
	for _, c := range []struct {
		what   string
		change func(*schedulingv1.StatefulSet)
		want   []string
	}{
		{"nothing is odd about it", func(*schedulingv1.StatefulSet) {}, nil},
		{"an empty strategy", strategy(nil), nil},
		{"a strategy with all it can have", rolling(map[string]any{"partition": 2, "maxUnavailable": "50%"}), nil},
		{"users delete its pods", strategy(map[string]any{"type": "OnDelete"}), nil},
		{"another type", strategy(map[string]any{"type": "Recreate"}), []string{update + ".type"}},
		{"a type that is no text", strategy(map[string]any{"type": 3}), []string{update + ".type"}},
		{"a field that is not known", strategy(map[string]any{"kind": "x"}), []string{update + ".kind"}},
		{"another below", rolling(map[string]any{"maxSurge": 1}), []string{update + ".rollingUpdate.maxSurge"}},
		{"limits that are no object", strategy(map[string]any{"rollingUpdate": "x"}), []string{update + ".rollingUpdate"}},
		{"limits that OnDelete has not", strategy(map[string]any{
			"type": "OnDelete", "rollingUpdate": map[string]any{"partition": 1},
		}), []string{update + ".rollingUpdate"}},
		{"half a pod", rolling(map[string]any{"partition": 1.5}), []string{update + ".rollingUpdate.partition"}},
		{
			"a percentage of ordinals", rolling(map[string]any{"partition": "5%"}),
			[]string{update + ".rollingUpdate.partition"},
		},
		{
			"no pod may be missing", rolling(map[string]any{"maxUnavailable": 0}),
			[]string{update + ".rollingUpdate.maxUnavailable"},
		},
		{
			"none in percent", rolling(map[string]any{"maxUnavailable": "0%"}),
			[]string{update + ".rollingUpdate.maxUnavailable"},
		},
		{
			"more than all", rolling(map[string]any{"maxUnavailable": "101%"}),
			[]string{update + ".rollingUpdate.maxUnavailable"},
		},
		{"a word", rolling(map[string]any{"maxUnavailable": "some"}), []string{update + ".rollingUpdate.maxUnavailable"}},
		{"a claim that asks for nothing", func(s *schedulingv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []*schedulingv1.PersistentVolumeClaim{{}}
		}, []string{
			"spec.volumeClaimTemplates[0].metadata.name", "spec.volumeClaimTemplates[0].spec.accessModes",
			"spec.volumeClaimTemplates[0].spec.resources.requests['storage']",
		}},
		{"a claim that a container mounts", func(s *schedulingv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []*schedulingv1.PersistentVolumeClaim{newClaim("data", "1Gi")}
			s.Spec.Template.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}, nil},
		{"two claims of one name", func(s *schedulingv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []*schedulingv1.PersistentVolumeClaim{newClaim("a", "1Gi"), newClaim("a", "1Gi")}
		}, []string{"spec.volumeClaimTemplates[1].metadata.name"}},
		{"claims are kept", retain("Retain", ""), nil},
		{"claims are deleted", retain("Delete", "Delete"), nil},
		{
			"a service that is no name", func(s *schedulingv1.StatefulSet) { s.Spec.ServiceName = "A.b" },
			[]string{"spec.serviceName"},
		},
		{"ordinals beyond what can be counted", func(s *schedulingv1.StatefulSet) {
			s.Spec.Ordinals = &schedulingv1.StatefulSetOrdinals{Start: 1<<31 - 1}
		}, []string{"spec.ordinals.start"}},
		{"a name of 53 characters", func(s *schedulingv1.StatefulSet) {
			s.Metadata.Name = strings.Repeat("x", 53)
		}, []string{"metadata.name"}},
		{"a name of 52 characters", func(s *schedulingv1.StatefulSet) { s.Metadata.Name = strings.Repeat("x", 52) }, nil},
		{"a template that JSON cannot say", func(s *schedulingv1.StatefulSet) {
			s.Spec.Template.Spec.DnsConfig = &structpb.Struct{Fields: map[string]*structpb.Value{"x": {}}}
		}, []string{"spec.template", "spec.template.spec.dnsConfig.x"}},
	} {
		s := &schedulingv1.StatefulSet{Metadata: meta("s"), Spec: &schedulingv1.StatefulSetSpec{
			Selector: selector("a"), Template: template("a", ""),
		}}
		c.change(s)
		made, err := tab.StatefulSets.Create(ctx, s)
		if got := wrong(err); !slices.Equal(got, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: wrong are %v, want %v: %v", c.what, got, c.want, err)
		}
		if err != nil {
			continue
		}
		fields := made.GetSpec().GetUpdateStrategy().GetFields()
		if fields["type"].GetStringValue() == rollingUpdate &&
			fields["rollingUpdate"].GetStructValue().GetFields()["partition"] == nil {
			t.Errorf("%s: the strategy is %v, without a partition", c.what, fields)
		}
		if _, err := tab.StatefulSets.Delete(ctx, "default", made.GetMetadata().GetName(), nil); err != nil {
			t.Fatal(err)
		}
	}
}
