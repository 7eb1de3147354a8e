package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// Version is what the agent says that it is.
const Version = "windlass-0.1.0"

// Status returns what the agent reports of its machine.
func (b Bootstrap) Status(node, address string, boot Boot) (*nodev1.NodeStatus, error) {
	capacity := make(map[string]*structpb.Value, len(b.Capacity))
	for k, q := range b.Capacity {
		v, err := structpb.NewValue(q)
		if err != nil {
			return nil, fmt.Errorf("%s: capacity %q: %w", bootstrapFile, k, err)
		}
		capacity[k] = v
	}
	s := &nodev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []*nodev1.NodeAddress{{Type: "Hostname", Address: node}},
		NodeInfo: &nodev1.NodeSystemInfo{
			MachineId: firstLine("/etc/machine-id"), SystemUuid: b.ProviderID, BootId: boot.ID,
			KernelVersion: firstLine("/proc/sys/kernel/osrelease"), OsImage: osImage(),
			ContainerRuntimeVersion: "process://" + runtime.Version(), KubeletVersion: Version,
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
	}
	if address != "" {
		s.Addresses = append([]*nodev1.NodeAddress{{Type: "InternalIP", Address: address}}, s.Addresses...)
	}
	return s, nil
}

// Labels returns the labels that an agent may set.
func Labels(node string) map[string]string {
	return map[string]string{"kubernetes.io/hostname": node, "kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH}
}

func osImage() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return runtime.GOOS
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return runtime.GOOS
}
