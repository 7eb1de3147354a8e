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

// evictionService speaks of pods and is answered by whoever evicts them.
const evictionService = "windlass.scheduling.v1.EvictionService"

// Program returns the program that serves a gRPC service, Gateway for the gateway's own, or "" for what is not exposed:
// windlass.provider.v1 is between machine-api and its provider alone.
func Program(service protoreflect.FullName) string {
	if service == eventService || service == accessService {
		return Gateway
	}
	if service == evictionService {
		return "eviction-controller"
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
	case "windlass.scheduling.v1":
		return "scheduler"
	case "windlass.config.v1":
		return "node-configurator"
	case "windlass.update.v1":
		return "update-orchestrator"
	}
	return ""
}
