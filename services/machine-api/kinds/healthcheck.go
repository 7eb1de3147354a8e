package kinds

import (
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// defaultHealthCheck sets the defaults of OpenShift's health checks.
func defaultHealthCheck(c *machinev1.MachineHealthCheck) {
	if c.Spec == nil {
		return // validation says so
	}
	if c.Spec.MaxUnhealthy == nil {
		c.Spec.MaxUnhealthy = structpb.NewStringValue("100%")
	}
	if c.Spec.NodeStartupTimeout == "" {
		c.Spec.NodeStartupTimeout = "10m"
	}
}
