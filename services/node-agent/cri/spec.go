package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// Labels of sandboxes and containers.
const (
	labelOwner     = "windlass.dev/owner"
	labelPool      = "windlass.dev/pool"
	labelContainer = "windlass.dev/container"

	// What tools that show containers of a runtime look for. Source: kubelet's labels.
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
)

// Annotations of containers.
const (
	annotationGrace = "windlass.dev/grace"  // for a container that was not ensured since the agent started
	annotationBegun = "windlass.dev/marker" // path of the file that says that a start was tried
)

// begunSuffix follows the path of the log in the name of an empty file that is made before a container is started. If
// the file exists and the container does not, the runtime has lost it.
const begunSuffix = ".begun"

// defaultGrace is the time from SIGTERM to SIGKILL of a container that names none.
const defaultGrace = 10 * time.Second

// Sandbox is what the containers of a pool share. It is in the network of the host.
type Sandbox struct {
	UID, Namespace, Name string // of the pod
	Hostname             string // in /etc/hostname; empty: the host's
	LogDir               string // absolute; created if missing
}

// Mount shows a file or directory of the host in a container.
type Mount struct {
	From, To string // both absolute
	ReadOnly bool
}

// Spec describes a container. It can be recorded as JSON. Containers whose Name and Serial are equal are the same.
type Spec struct {
	Name      string // Pool, a dot and the name in the pod; unique
	Pool      string // of the containers that share a sandbox
	Serial    int    // 0 or more; with another number it is another container
	Sandbox   Sandbox
	Container string   // its name in the pod
	Image     string   // as the runtime knows it; it must be present
	Command   []string // replaces the entrypoint and the arguments of the image; not empty
	Env       []string // KEY=value, added to the environment of the image
	Dir       string   // working directory; empty: the image's
	Mounts    []Mount
	UID, GID  uint32 // 1 or more
	// ReadOnlyRoot means that only mounts can be written to.
	ReadOnlyRoot bool
	// Confined means that the system calls are those of the runtime's default profile; else all.
	Confined bool
	// Limits are what the container may use. PoolLimits are the requests of all containers of the pool together, which
	// say which processes the kernel ends first when memory is short, and the limit of their processes. The weight of
	// the pool and this limit are in force where CanLimitProcesses says so, and are those of the last container made.
	Limits     cgroup.Limits `json:",omitzero"`
	PoolLimits cgroup.Limits `json:",omitzero"`
	// LogPath is where the output goes, relative to Sandbox.LogDir, in the format of CRI. The empty file with the
	// suffix ".begun" beside it belongs to this package.
	LogPath string
	// Ran means that the container ran: if the runtime does not have it, it is lost and not made again. The file beside
	// the log says that, too, but goes with a container that another client of the owner ends.
	Ran   bool          `json:"-"`
	Grace time.Duration // from SIGTERM to SIGKILL when stopped; zero: 10 s
	// Changed, if it is not nil, is called after the Status changed. It must not block.
	Changed func() `json:"-"`
}

func (s Spec) validate() error {
	problem := func(format string, args ...any) error {
		return fmt.Errorf("container %q: %s", s.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Name == "" || s.Pool == "" || s.Container == "" || s.Image == "" || len(s.Command) == 0:
		return problem("name, pool, container, image and command must not be empty")
	case s.Name != s.Pool+"."+s.Container || strings.Contains(s.Container, "."):
		return problem("its name is not that of its pool %q, a dot and %q, which has none", s.Pool, s.Container)
	case strings.Contains(s.Pool, "/"):
		return problem("its pool %q is no name of a file", s.Pool)
	case s.Serial < 0:
		return problem("serial %d is negative", s.Serial)
	case s.Sandbox.UID == "" || s.Sandbox.Namespace == "" || s.Sandbox.Name == "":
		return problem("uid, namespace and name of the sandbox must not be empty")
	case s.UID == 0 || s.GID == 0:
		return problem("its user and group must not be 0")
	case !filepath.IsAbs(s.Sandbox.LogDir):
		return problem("log directory %q is not absolute", s.Sandbox.LogDir)
	case !filepath.IsLocal(s.LogPath):
		return problem("path %q is not within the log directory", s.LogPath)
	}
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.From) || !filepath.IsAbs(m.To) {
			return problem("mount of %q at %q: a path is not absolute", m.From, m.To)
		}
	}
	for _, e := range s.Env {
		if !strings.Contains(e, "=") || strings.HasPrefix(e, "=") {
			return problem("environment entry %q is not KEY=value", e)
		}
	}
	return nil
}

// begun returns the path of the file that says that a start was tried.
func (s Spec) begun() string { return filepath.Join(s.Sandbox.LogDir, s.LogPath) + begunSuffix }

func (s Spec) grace() time.Duration {
	if s.Grace <= 0 {
		return defaultGrace
	}
	return s.Grace
}

// graceOf returns the grace period that a container was made with.
func graceOf(c *runtimeapi.Container) time.Duration {
	if grace, err := time.ParseDuration(c.GetAnnotations()[annotationGrace]); err == nil && grace > 0 {
		return grace
	}
	return defaultGrace
}

// sandboxConfig describes the sandbox of a container to the runtime. attempt counts the sandboxes of a pool.
func (s Spec) sandboxConfig(owner string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: s.Sandbox.Name, Uid: s.Sandbox.UID, Namespace: s.Sandbox.Namespace, Attempt: attempt,
		},
		Hostname: s.Sandbox.Hostname, LogDirectory: s.Sandbox.LogDir,
		Labels: map[string]string{
			labelOwner: owner, labelPool: s.Pool,
			labelPodName: s.Sandbox.Name, labelPodNamespace: s.Sandbox.Namespace, labelPodUID: s.Sandbox.UID,
		},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: namespaces(),
			RunAsUser:        &runtimeapi.Int64Value{Value: int64(s.UID)},
			RunAsGroup:       &runtimeapi.Int64Value{Value: int64(s.GID)},
			ReadonlyRootfs:   true,
			Seccomp:          seccomp(s.Confined),
		}},
	}
}

// containerConfig describes the container to the runtime.
func (s Spec) containerConfig(owner string) *runtimeapi.ContainerConfig {
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: s.Container, Attempt: uint32(s.Serial)},
		Image:    &runtimeapi.ImageSpec{Image: s.Image, UserSpecifiedImage: s.Image},
		Command:  s.Command, WorkingDir: s.Dir, LogPath: s.LogPath,
		Labels: map[string]string{
			labelOwner: owner, labelPool: s.Pool, labelContainer: s.Name, labelContainerName: s.Container,
			labelPodName: s.Sandbox.Name, labelPodNamespace: s.Sandbox.Namespace, labelPodUID: s.Sandbox.UID,
		},
		Annotations: map[string]string{annotationGrace: s.grace().String(), annotationBegun: s.begun()},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: s.resources(),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Capabilities:             &runtimeapi.Capability{DropCapabilities: []string{"ALL"}},
				NamespaceOptions:         namespaces(),
				RunAsUser:                &runtimeapi.Int64Value{Value: int64(s.UID)},
				RunAsGroup:               &runtimeapi.Int64Value{Value: int64(s.GID)},
				SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict,
				ReadonlyRootfs:           s.ReadOnlyRoot,
				NoNewPrivs:               true,
				MaskedPaths:              maskedPaths(),
				ReadonlyPaths:            readOnlyPaths(),
				Seccomp:                  seccomp(s.Confined),
			},
		},
	}
	for _, e := range s.Env {
		key, value, _ := strings.Cut(e, "=")
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
	}
	for _, m := range s.Mounts {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			HostPath: m.From, ContainerPath: m.To, Readonly: m.ReadOnly,
			Propagation: runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		})
	}
	return c
}

func namespaces() *runtimeapi.NamespaceOption {
	return &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD,
	}
}

func seccomp(confined bool) *runtimeapi.SecurityProfile {
	if confined {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// maskedPaths are hidden from containers. Source: kubelet's default.
func maskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
}

// readOnlyPaths cannot be written to by containers. Source: kubelet's default.
func readOnlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

const (
	cpuPeriod    = 100_000 // microseconds
	minQuota     = 1_000   // microseconds
	sharesOfCore = 1024
	minShares    = 2
	maxShares    = 262_144

	// Bounds of oom_score_adj: of containers that are guaranteed what they may use, and of those that ask for nothing.
	guaranteedScore = -997
	bestEffortScore = 1000
)

// resources are the limits of the container. Source: kubelet's conversion.
func (s Spec) resources() *runtimeapi.LinuxContainerResources {
	l := s.Limits
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          min(max(l.MilliCPURequest*sharesOfCore/1000, minShares), maxShares),
		MemoryLimitInBytes: l.Memory,
		OomScoreAdj:        oomScore(l, s.PoolLimits, memoryOfHost()),
	}
	if l.MilliCPU > 0 {
		out.CpuPeriod, out.CpuQuota = cpuPeriod, max(l.MilliCPU*cpuPeriod/1000, minQuota)
	}
	if l.Memory > 0 && limitsSwap() {
		out.MemorySwapLimitInBytes = l.Memory
	}
	return out
}

// oomScore returns what the kernel adds to the score of a container's processes when memory is short. memory is that of
// the host, in bytes. Source: kubelet's qos policy, which knows the class of the pod: here a container is guaranteed if
// its own requests are its limits.
func oomScore(l, pool cgroup.Limits, memory int64) int64 {
	pool.Processes = 0
	switch {
	case l == cgroup.Limits{} && pool == cgroup.Limits{}:
		return bestEffortScore
	case l.MilliCPU > 0 && l.Memory > 0 && l.MilliCPU == l.MilliCPURequest && l.Memory == l.MemoryRequest:
		return guaranteedScore
	}
	score := int64(bestEffortScore)
	if memory > 0 {
		score -= bestEffortScore * l.MemoryRequest / memory
	}
	return min(max(score, bestEffortScore+guaranteedScore), bestEffortScore-1)
}

// memoryOfHost returns the memory of this host in bytes; 0 if it cannot be read.
var memoryOfHost = sync.OnceValue(func() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kilobytes, _ := strconv.ParseInt(f[1], 10, 64)
			return kilobytes << 10
		}
	}
	return 0
})

// limitsSwap reports whether this host can limit swap beside memory.
var limitsSwap = sync.OnceValue(func() bool {
	for _, path := range []string{
		"/sys/fs/cgroup/cgroup.controllers", // the unified hierarchy
		"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes",
	} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
})

// makeBegun notes that a start of the container is tried.
func (s Spec) makeBegun() error {
	f, err := os.OpenFile(s.begun(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
