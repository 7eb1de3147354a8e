package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unicode"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/version"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/structpb"
)

// runtimeVersion is what the agent says that it is.
var runtimeVersion = "windlass-" + version.Number

// Status returns what the agent reports of its machine. It has what its provider says, and where that says nothing,
// what its host has. system is the directory of the operating system that it runs; empty if that is the host's.
func (b Bootstrap) Status(node, address string, boot Boot, system string) (*nodev1.NodeStatus, error) {
	capacity := make(map[string]*structpb.Value, len(b.Capacity))
	for k, q := range b.Capacity {
		v, err := structpb.NewValue(q)
		if err != nil {
			return nil, fmt.Errorf("%s: capacity %q: %w", bootstrapFile, k, err)
		}
		capacity[k] = v
	}
	for k, has := range host() {
		if capacity[k] == nil {
			capacity[k] = structpb.NewStringValue(has)
		}
	}
	s := &nodev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []*nodev1.NodeAddress{{Type: "Hostname", Address: node}},
		NodeInfo: &nodev1.NodeSystemInfo{
			MachineId: firstLine("/etc/machine-id"), SystemUuid: b.ProviderID, BootId: boot.ID,
			KernelVersion: firstLine("/proc/sys/kernel/osrelease"), OsImage: osImage(system),
			ContainerRuntimeVersion: "process://" + runtime.Version(), KubeletVersion: runtimeVersion,
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
	}
	if address != "" {
		s.Addresses = append([]*nodev1.NodeAddress{{Type: "InternalIP", Address: address}}, s.Addresses...)
	}
	return s, nil
}

// maxPods is how many pods a machine takes that says nothing of them. Source: Kubernetes' default.
const maxPods = "110"

// host returns what the host has.
func host() map[string]string {
	out := map[string]string{"cpu": strconv.Itoa(runtime.NumCPU()), "pods": maxPods}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		out["memory"] = strconv.FormatUint(info.Totalram*uint64(info.Unit)>>10, 10) + "Ki"
	}
	return out
}

// Labels returns the labels that an agent sets; shares says that pods have the address of the machine.
func Labels(node string, shares bool) map[string]string {
	out := map[string]string{
		"kubernetes.io/hostname": node, "kubernetes.io/os": runtime.GOOS,
		"kubernetes.io/arch": runtime.GOARCH,
	}
	if shares {
		out[placement.PodAddressLabel] = placement.NodeAddress
	}
	return out
}

const (
	maxRelease = 64 << 10 // bytes of a file os-release
	maxOSImage = 200      // of the name that is reported
)

// osImage returns the name that an operating system gives itself. Source: os-release(5). The file comes from an image.
func osImage(system string) string {
	f, err := openRelease(system)
	if err != nil {
		return runtime.GOOS
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRelease))
	if err != nil {
		return runtime.GOOS
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			v = strings.Trim(v, `"`)
			return strings.Map(printable, strings.ToValidUTF8(v[:min(len(v), maxOSImage)], ""))
		}
	}
	return runtime.GOOS
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}

func openRelease(system string) (*os.File, error) {
	if system == "" {
		return os.Open("/etc/os-release")
	}
	root, err := os.OpenRoot(system)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open("etc/os-release")
	if errors.Is(err, fs.ErrNotExist) {
		return root.Open("usr/lib/os-release")
	}
	return f, err
}
