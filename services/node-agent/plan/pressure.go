package plan

import (
	"fmt"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

const (
	// leastMemory is what must be left of the machine's memory. Source: Kubernetes' default threshold of hard eviction.
	leastMemory = 100 << 20
	// fullPercent is how much of the machine's disk may be used.
	fullPercent = 85
)

// Usage is what the machine has and what its pods use, in bytes; a capacity of 0 is not known.
type Usage struct {
	Memory, MemoryCapacity int64
	Disk, DiskCapacity     int64
}

// Pressure returns the conditions MemoryPressure and DiskPressure. A machine that has less than twice the threshold is
// short of memory when half of that is used.
func Pressure(u Usage) []*nodev1.NodeCondition {
	memory := &nodev1.NodeCondition{Type: "MemoryPressure", Status: "False", Reason: new("KubeletHasSufficientMemory")}
	if left := u.MemoryCapacity - u.Memory; u.MemoryCapacity > 0 && left < min(leastMemory, u.MemoryCapacity/2) {
		memory.Status, memory.Reason = "True", new("KubeletHasInsufficientMemory")
		memory.Message = new(fmt.Sprintf("the pods leave too little of %d MiB", u.MemoryCapacity>>20))
	}
	disk := &nodev1.NodeCondition{Type: "DiskPressure", Status: "False", Reason: new("KubeletHasNoDiskPressure")}
	if u.DiskCapacity > 0 && u.Disk > u.DiskCapacity/100*fullPercent {
		disk.Status, disk.Reason = "True", new("KubeletHasDiskPressure")
		disk.Message = new(fmt.Sprintf("more than %d %% of %d MiB are used", fullPercent, u.DiskCapacity>>20))
	}
	return []*nodev1.NodeCondition{memory, disk}
}
