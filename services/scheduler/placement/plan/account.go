package plan

import (
	"fmt"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// DefaultAccount is the service account of pods that name none. Every namespace has it.
const DefaultAccount = "default"

// DefaultAccountOf fills in the service account of a spec. The former name of the field counts if the present one is
// empty, and has the same value then.
func DefaultAccountOf(spec *schedulingv1.PodSpec) {
	if spec.GetServiceAccountName() == "" {
		spec.ServiceAccountName = spec.GetServiceAccount()
	}
	if spec.GetServiceAccountName() == "" {
		spec.ServiceAccountName = DefaultAccount
	}
	spec.ServiceAccount = ""
}

// AdmitAccount gives a new pod what comes with its service account: the secrets for pulling images unless it names some
// itself, and whether it gets a token unless it says that. account is nil if there is none of the name. It returns why
// the pod is refused; empty if it is not.
func AdmitAccount(pod *schedulingv1.Pod, account *schedulingv1.ServiceAccount) (forbidden string) {
	spec, name := pod.GetSpec(), pod.GetSpec().GetServiceAccountName()
	switch {
	case account == nil && name == DefaultAccount:
		return "" // it is about to be created
	case account == nil || object.Deleting(account):
		return fmt.Sprintf("spec.serviceAccountName: service account %q not found in namespace %q", name,
			pod.GetMetadata().GetNamespace())
	}
	if spec.AutomountServiceAccountToken == nil && account.AutomountServiceAccountToken != nil {
		spec.AutomountServiceAccountToken = proto.Bool(account.GetAutomountServiceAccountToken())
	}
	if len(spec.GetImagePullSecrets()) > 0 {
		return ""
	}
	for _, s := range account.GetImagePullSecrets() {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, &structpb.Struct{
			Fields: map[string]*structpb.Value{"name": structpb.NewStringValue(s.GetName())},
		})
	}
	return ""
}
