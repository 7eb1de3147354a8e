package plan_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// withClaims gives a stateful set a claim template.
func withClaims(s *schedulingv1.StatefulSet) {
	s.Spec.VolumeClaimTemplates = []*schedulingv1.PersistentVolumeClaim{{
		Metadata: &metav1.ObjectMeta{Name: "data"},
		Spec:     &schedulingv1.PersistentVolumeClaimSpec{AccessModes: []string{"ReadWriteOnce"}},
	}}
}

func retaining(scaled, deleted string) func(*schedulingv1.StatefulSet) {
	return func(s *schedulingv1.StatefulSet) {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &schedulingv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: scaled, WhenDeleted: deleted,
		}
	}
}

func TestTheClaimsOfAStatefulSet(t *testing.T) {
	claim := func(s *schedulingv1.StatefulSet, n int, change ...func(*schedulingv1.PersistentVolumeClaim),
	) *schedulingv1.PersistentVolumeClaim {
		c := &schedulingv1.PersistentVolumeClaim{Metadata: &metav1.ObjectMeta{
			Name: fmt.Sprint("data-web-", n), Namespace: s.GetMetadata().GetNamespace(), Uid: fmt.Sprint("claim-", n),
			Labels: s.GetSpec().GetSelector().GetMatchLabels(),
		}}
		for _, f := range change {
			f(c)
		}
		return c
	}
	going := func(c *schedulingv1.PersistentVolumeClaim) { c.Metadata.DeletionTimestamp = at(start) }
	strange := func(c *schedulingv1.PersistentVolumeClaim) { c.Metadata.Labels = nil }
	type claims = []*schedulingv1.PersistentVolumeClaim
	for _, tt := range []struct {
		name   string
		change []func(*schedulingv1.StatefulSet)
		claims func(*schedulingv1.StatefulSet) claims
		pods   func(*schedulingv1.StatefulSet) []*schedulingv1.Pod
		want   []string // actions on claims and pods
	}{
		{
			name: "a claim is created before its pod",
			want: []string{"CreatePersistentVolumeClaim data-web-0", "CreatePod web-0"},
		},
		{
			name:   "a claim of an earlier pod is used again",
			claims: func(s *schedulingv1.StatefulSet) claims { return claims{claim(s, 0)} },
			want:   []string{"CreatePod web-0"},
		},
		{
			name:   "a claim that is being deleted is waited for",
			claims: func(s *schedulingv1.StatefulSet) claims { return claims{claim(s, 0, going)} },
		},
		{
			name:   "without order the others do not wait",
			change: []func(*schedulingv1.StatefulSet){parallel},
			claims: func(s *schedulingv1.StatefulSet) claims { return claims{claim(s, 0, going)} },
			want:   []string{"CreatePersistentVolumeClaim data-web-1", "CreatePod web-1"},
		},
		{
			name: "claims that are not wanted stay",
			claims: func(s *schedulingv1.StatefulSet) claims {
				return claims{claim(s, 0), claim(s, 7)}
			},
			want: []string{"CreatePod web-0"},
		},
		{
			name:   "claims that are not wanted go, but not those that only have such a name",
			change: []func(*schedulingv1.StatefulSet){retaining("Delete", "")},
			claims: func(s *schedulingv1.StatefulSet) claims {
				return claims{claim(s, 0), claim(s, 7), claim(s, 8, strange)}
			},
			want: []string{"CreatePod web-0", "DeletePersistentVolumeClaim data-web-7"},
		},
		{
			name:   "the claim of a pod that is not gone stays until it is",
			change: []func(*schedulingv1.StatefulSet){retaining("Delete", "")},
			claims: func(s *schedulingv1.StatefulSet) claims { return claims{claim(s, 0), claim(s, 7)} },
			pods: func(s *schedulingv1.StatefulSet) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-7", s, func(p *schedulingv1.Pod) {
					p.Metadata.DeletionTimestamp = at(start)
				})}
			},
			want: []string{"CreatePod web-0"},
		},
		{
			name:   "claims that are deleted with the set are its own",
			change: []func(*schedulingv1.StatefulSet){retaining("", "Delete")},
			claims: func(s *schedulingv1.StatefulSet) claims { return claims{claim(s, 0)} },
			want:   []string{"AdoptPersistentVolumeClaim data-web-0", "CreatePod web-0"},
		},
		{
			name: "claims that are kept are not",
			claims: func(s *schedulingv1.StatefulSet) claims {
				return claims{claim(s, 0, func(c *schedulingv1.PersistentVolumeClaim) {
					c.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(s)}
				})}
			},
			want: []string{"ReleasePersistentVolumeClaim data-web-0", "CreatePod web-0"},
		},
		{
			name: "a claim that goes with an earlier set of the name is not used",
			claims: func(s *schedulingv1.StatefulSet) claims {
				former := proto.CloneOf(s)
				former.Metadata.Uid = "former"
				return claims{claim(s, 0, func(c *schedulingv1.PersistentVolumeClaim) {
					c.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(former)}
				})}
			},
		},
		{
			name:   "a pod that no node has yet gets back the claim that it lost",
			change: []func(*schedulingv1.StatefulSet){strategy("type", "OnDelete")},
			pods: func(s *schedulingv1.StatefulSet) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, unready, func(p *schedulingv1.Pod) { p.Spec.NodeName = "" })}
			},
			want: []string{"CreatePersistentVolumeClaim data-web-0"},
		},
		{
			name:   "one that runs keeps what it has",
			change: []func(*schedulingv1.StatefulSet){strategy("type", "OnDelete")},
			pods: func(s *schedulingv1.StatefulSet) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, unready)}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := statefulSet(2, "v1")
			withClaims(s)
			for _, f := range tt.change {
				f(s)
			}
			v := plan.StatefulSetView{Now: start, Set: s}
			if tt.claims != nil {
				v.Claims = tt.claims(s)
			}
			if tt.pods != nil {
				v.Pods = tt.pods(s)
			}
			p := plan.StatefulSet(v)
			var got []string
			for _, a := range p.Actions() {
				if kind := a.GetObject().GetKind(); kind == "Pod" || kind == "PersistentVolumeClaim" {
					got = append(got, a.GetAction()+" "+a.GetObject().GetName())
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q; held back %v", got, tt.want, p.Held)
			}
		})
	}
}

// A pod has its claims as volumes, in place of those of its template with the same names.
func TestAPodMountsItsClaims(t *testing.T) {
	s := statefulSet(1, "v1")
	withClaims(s)
	s.Spec.Template.Spec.Volumes = []*schedulingv1.Volume{
		{Name: "data", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}, {Name: "other"},
	}
	was := proto.CloneOf(s)
	p := plan.StatefulSet(plan.StatefulSetView{Now: start, Set: s})
	if len(p.Create) != 1 || len(p.CreateClaims) != 1 {
		t.Fatalf("the plan is %v", p.Actions())
	}
	volumes := p.Create[0].GetSpec().GetVolumes()
	if len(volumes) != 2 || volumes[0].GetName() != "other" ||
		volumes[1].GetPersistentVolumeClaim().GetClaimName() != "data-web-0" {
		t.Errorf("its volumes are %v", volumes)
	}
	if c := p.CreateClaims[0]; len(c.GetMetadata().GetLabels()) == 0 || c.GetMetadata().GetOwnerReferences() != nil {
		t.Errorf("its claim is %v", c)
	}
	if !proto.Equal(was, s) {
		t.Error("the set was modified")
	}
}
