package podconfig

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/api/resource"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

func (r Resource) divisor() (float64, error) {
	if r.Divisor == "" {
		return 1, nil
	}
	q, err := resource.ParseQuantity(r.Divisor)
	if err != nil {
		return 0, err
	}
	if q.Sign() == 0 && r.Divisor == "0" { // Kubernetes writes 0 where none is given
		return 1, nil
	}
	if q.Sign() <= 0 {
		return 0, errors.New("must be above 0")
	}
	return q.AsApproximateFloat64(), nil
}

// Text returns the value of the resource, in units of the divisor and rounded up. c is the container that has the
// variable, which may be nil if r names one. A request that is not set is 0.
func (r Resource) Text(spec *schedulingv1.PodSpec, c *schedulingv1.Container) (string, error) {
	if r.Container != "" {
		if c = find(spec, r.Container); c == nil {
			return "", fmt.Errorf("the pod has no container %q", r.Container)
		}
	}
	list := c.GetResources().GetRequests()
	if r.Limit {
		list = c.GetResources().GetLimits()
	}
	v, ok := list[r.Name]
	if !ok && r.Limit {
		return "", fmt.Errorf("the container has no limit of %s", r.Name)
	}
	if !ok {
		return "0", nil
	}
	text := v.GetStringValue()
	if _, number := v.GetKind().(*structpb.Value_NumberValue); number {
		text = fmt.Sprint(v.GetNumberValue())
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Name, err)
	}
	by, err := r.divisor()
	if err != nil {
		return "", fmt.Errorf("divisor: %w", err)
	}
	return fmt.Sprintf("%.0f", math.Ceil(q.AsApproximateFloat64()/by)), nil
}
