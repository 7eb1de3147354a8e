package placement

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/api/resource"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Names of resources.
const (
	CPU              = "cpu"
	Memory           = "memory"
	EphemeralStorage = "ephemeral-storage"
	Pods             = "pods"
)

// Classes of service of a pod.
const (
	Guaranteed      = "Guaranteed"
	Burstable       = "Burstable"
	BestEffortClass = "BestEffort"
)

const (
	// defaultMilliCPU and defaultMemory are what a container counts for when nodes are ranked and it does not say what it
	// needs, so that many of them do not all go to one node. Source: the scheduler's priorities.
	defaultMilliCPU = 100
	defaultMemory   = 200 << 20
	// maxAmount bounds every amount, so that sums of a node's pods cannot overflow: 4 PiB, or 4.5 * 10^12 cores.
	maxAmount = 1 << 52
	// defaultPods is how many pods a node takes that does not say it.
	defaultPods = 110
)

// Resources are amounts: thousandths of a core, bytes, and for everything else (Scalar) the whole number. The zero
// Resources is nothing.
type Resources struct {
	MilliCPU, Memory, EphemeralStorage int64
	Scalar                             map[string]int64 // by name; nil if there is none
}

// Add adds o to r.
func (r *Resources) Add(o Resources) {
	r.MilliCPU += o.MilliCPU
	r.Memory += o.Memory
	r.EphemeralStorage += o.EphemeralStorage
	for name, n := range o.Scalar {
		r.addScalar(name, n)
	}
}

// Sub takes o from r; an amount may become negative.
func (r *Resources) Sub(o Resources) {
	r.MilliCPU -= o.MilliCPU
	r.Memory -= o.Memory
	r.EphemeralStorage -= o.EphemeralStorage
	for name, n := range o.Scalar {
		r.addScalar(name, -n)
	}
}

func (r *Resources) addScalar(name string, n int64) {
	if r.Scalar == nil {
		r.Scalar = map[string]int64{}
	}
	if r.Scalar[name] += n; r.Scalar[name] == 0 {
		delete(r.Scalar, name)
	}
}

// atLeast raises every amount of r to that of o.
func (r *Resources) atLeast(o Resources) {
	r.MilliCPU = max(r.MilliCPU, o.MilliCPU)
	r.Memory = max(r.Memory, o.Memory)
	r.EphemeralStorage = max(r.EphemeralStorage, o.EphemeralStorage)
	for name, n := range o.Scalar {
		if more := n - r.Scalar[name]; more > 0 {
			r.addScalar(name, more)
		}
	}
}

// Zero reports whether nothing is asked for.
func (r Resources) Zero() bool {
	return r.MilliCPU == 0 && r.Memory == 0 && r.EphemeralStorage == 0 && len(r.Scalar) == 0
}

// RequestsOf returns what a pod needs of its node: for each resource the sum of its containers and sidecars, or what
// the largest of its init containers and the sidecars before it need, whichever is more, and its overhead. Limits do
// not count. A quantity that cannot be read counts as nothing.
func RequestsOf(spec *schedulingv1.PodSpec) Resources {
	var sum Resources
	for _, c := range spec.GetContainers() {
		sum.Add(amounts(c.GetResources().GetRequests()))
	}
	var sidecars, most Resources // those that started so far; at any moment of the initialization
	for _, c := range spec.GetInitContainers() {
		if IsSidecar(c) {
			sidecars.Add(amounts(c.GetResources().GetRequests()))
			most.atLeast(sidecars)
			continue
		}
		needs := amounts(c.GetResources().GetRequests())
		needs.Add(sidecars)
		most.atLeast(needs)
	}
	sum.Add(sidecars)
	sum.atLeast(most)
	if o := spec.GetOverhead(); len(o) > 0 {
		sum.Add(amounts(o))
	}
	return sum
}

// IsSidecar reports whether an init container keeps running beside the others.
func IsSidecar(c *schedulingv1.Container) bool { return c.GetRestartPolicy() == "Always" }

// NonZeroRequestsOf returns cpu and memory of a pod as ranking counts them: a container that does not say counts for
// 100m and 200Mi, one that says 0 for 0. Of the init containers only sidecars count.
func NonZeroRequestsOf(spec *schedulingv1.PodSpec) (milliCPU, memory int64) {
	list := spec.GetContainers()
	for _, c := range spec.GetInitContainers() {
		if IsSidecar(c) {
			list = append(slices.Clone(list), c)
		}
	}
	for _, c := range list {
		requests := c.GetResources().GetRequests()
		if v, ok := requests[CPU]; ok {
			milliCPU += amount(CPU, v)
		} else {
			milliCPU += defaultMilliCPU
		}
		if v, ok := requests[Memory]; ok {
			memory += amount(Memory, v)
		} else {
			memory += defaultMemory
		}
	}
	return milliCPU, memory
}

// Allocatable returns what a node has for pods, and for how many of them. A resource that is not among the allocatable
// ones is taken from the capacity; a node that says nothing of pods takes 110.
func Allocatable(node *nodev1.Node) (has Resources, pods int64) {
	all := node.GetStatus().GetCapacity()
	if a := node.GetStatus().GetAllocatable(); len(a) > 0 {
		all = maps.Clone(all)
		if all == nil {
			all = make(map[string]*structpb.Value, len(a))
		}
		maps.Copy(all, a)
	}
	has, pods = amounts(all), defaultPods
	if v, ok := all[Pods]; ok {
		pods = amount(Pods, v)
	}
	return has, pods
}

// AmountsOf returns the amounts of a list of quantities. A quantity that cannot be read counts as nothing.
func AmountsOf(list map[string]*structpb.Value) Resources { return amounts(list) }

func amounts(list map[string]*structpb.Value) (r Resources) {
	for name, v := range list {
		n := amount(name, v)
		switch name {
		case Pods: // counted by themselves
		case CPU:
			r.MilliCPU = n
		case Memory:
			r.Memory = n
		case EphemeralStorage:
			r.EphemeralStorage = n
		default:
			if n != 0 {
				r.addScalar(name, n)
			}
		}
	}
	return r
}

// amount returns a quantity in the unit of its resource, rounded up; 0 if it is negative or cannot be read.
func amount(name string, v *structpb.Value) int64 {
	q, err := Quantity(v)
	if err != nil || q.Sign() <= 0 {
		return 0
	}
	if name == CPU {
		if q.CmpInt64(maxAmount/1000) >= 0 {
			return maxAmount
		}
		return q.MilliValue()
	}
	if q.CmpInt64(maxAmount) >= 0 {
		return maxAmount
	}
	return q.Value()
}

const (
	longestQuantity = 64  // characters
	maxExponent     = 100 // of ten: to parse or compare 1e2000000000 takes all memory and time that there is
)

// excessive reports whether a quantity is too long or has an exponent that is too large.
func excessive(text string) bool {
	if i := strings.LastIndexAny(text, "eE"); i >= 0 {
		n, err := strconv.Atoi(text[i+1:])
		if errors.Is(err, strconv.ErrRange) || n > maxExponent || n < -maxExponent {
			return true
		}
	}
	return len(text) > longestQuantity
}

// ParseQuantity reads a quantity such as 500m or 2Gi.
func ParseQuantity(text string) (resource.Quantity, error) {
	if excessive(text) {
		return resource.Quantity{}, fmt.Errorf("is no quantity: at most %d characters, and an exponent of at most %d",
			longestQuantity, maxExponent)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return q, fmt.Errorf("%q is no quantity: write a number or a string such as 500m or 2Gi", text)
	}
	return q, nil
}

// Quantity reads a quantity: a number, or a string such as 500m or 2Gi.
func Quantity(v *structpb.Value) (resource.Quantity, error) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return ParseQuantity(k.StringValue)
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return resource.Quantity{}, fmt.Errorf("%v is no quantity", k.NumberValue)
		}
		return resource.ParseQuantity(strconv.FormatFloat(k.NumberValue, 'f', -1, 64))
	}
	return resource.Quantity{}, fmt.Errorf("is no quantity: write a number or a string such as 500m or 2Gi")
}

// BestEffort reports whether a pod is promised nothing: no container asks for cpu or memory or has a limit on them.
func BestEffort(spec *schedulingv1.PodSpec) bool { return QOSClass(spec) == BestEffortClass }

// QOSClass returns a pod's class of service: Guaranteed if every container has limits on cpu and memory and needs as
// much, BestEffort if none says anything of either, Burstable otherwise. Init containers do not count.
func QOSClass(spec *schedulingv1.PodSpec) string {
	guaranteed, any := true, false
	for _, c := range spec.GetContainers() {
		requests, limits := c.GetResources().GetRequests(), c.GetResources().GetLimits()
		for _, name := range [...]string{CPU, Memory} {
			limit := amount(name, limits[name])
			request := limit // a limit alone is a request too
			if v, ok := requests[name]; ok {
				request = amount(name, v)
			}
			any = any || limit > 0 || request > 0
			guaranteed = guaranteed && limit > 0 && limit == request
		}
	}
	switch {
	case !any:
		return BestEffortClass
	case guaranteed:
		return Guaranteed
	}
	return Burstable
}

// ValidateQuantities returns the wrong quantities of a pod's spec below path: unreadable, negative or beyond all
// measure ones, and requests that are more than their limit.
func ValidateQuantities(path string, spec *schedulingv1.PodSpec) (fields []object.Fault) {
	containers := func(name string, list []*schedulingv1.Container) {
		for i, c := range list {
			at := fmt.Sprintf("%s.%s[%d].resources", path, name, i)
			limits := quantities(at+".limits", c.GetResources().GetLimits(), &fields)
			requests := quantities(at+".requests", c.GetResources().GetRequests(), &fields)
			for _, name := range slices.Sorted(maps.Keys(requests)) {
				request := requests[name]
				if limit, ok := limits[name]; ok && request.Cmp(limit) > 0 {
					fields = append(fields, object.Fault{
						Path:        quantityPath(at+".requests", name),
						Description: fmt.Sprintf("must not be more than the limit: %s of %s", request.String(), limit.String()),
					})
				}
			}
		}
	}
	containers("containers", spec.GetContainers())
	containers("initContainers", spec.GetInitContainers())
	quantities(path+".overhead", spec.GetOverhead(), &fields)
	return fields
}

// quantities reads a list of quantities and adds what is wrong with it to fields.
func quantities(path string, list map[string]*structpb.Value, fields *[]object.Fault) map[string]resource.Quantity {
	out := make(map[string]resource.Quantity, len(list))
	for _, name := range slices.Sorted(maps.Keys(list)) {
		bad := func(description string) {
			*fields = append(*fields, object.Fault{Path: quantityPath(path, name), Description: description})
		}
		q, err := Quantity(list[name])
		switch {
		case err != nil:
			bad(err.Error())
		case q.Sign() < 0:
			bad("must not be negative")
		case name == CPU && q.CmpInt64(maxAmount/1000) >= 0, q.CmpInt64(maxAmount) >= 0:
			bad("is beyond all measure")
		default:
			out[name] = q
		}
	}
	return out
}

func quantityPath(path, name string) string { return path + "['" + name + "']" }
