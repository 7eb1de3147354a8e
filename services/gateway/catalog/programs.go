package catalog

import "google.golang.org/protobuf/reflect/protoreflect"

// Gateway is the program name of what the gateway answers itself.
const Gateway = "gateway"

// What the gateway answers itself: events, of which every program serves its own part and the gateway merges them, and questions
// about the caller's own rights.
const (
	eventService  = "windlass.event.v1.EventService"
	accessService = "windlass.meta.v1.AccessService"
)

// Program returns the program that serves a gRPC service, Gateway for the gateway's own, or "" for what is not exposed:
// windlass.provider.v1 is between machine-api and its provider alone.
func Program(service protoreflect.FullName) string {
	if service == eventService || service == accessService {
		return Gateway
	}
	switch service.Parent() {
	case "windlass.machine.v1":
		return "machine-api"
	case "windlass.hook.v1":
		return "hook-broker"
	case "windlass.etcd.v1":
		return "etcd-guardian"
	case "windlass.node.v1":
		return "eviction-controller"
	}
	return ""
}
