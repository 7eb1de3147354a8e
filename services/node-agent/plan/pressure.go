package plan

import (
	"fmt"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

const (
	// leastMemory is what must be left of the machine's memory. Source: Kubernetes' default threshold of hard eviction.
	leastMemory = 100 << 20
	// fullPercent is how much may be used of the disk that a machine was given.
	fullPercent = 85
	// Of the file system itself less must be left: a tenth as in Kubernetes, but no more than leastDisk, since a host may
	// have other uses for a large disk, and what those leave is not the pods' to free.
	freePercent = 10
	leastDisk   = 512 << 20
	// Source: Kubernetes' default threshold of hard eviction.
	freeInodesPercent = 5
	// A twentieth of the numbers of processes must be left.
	freePIDsPercent = 5

	// calmPressure is how long enough must have been left before a condition ends, so that pods which are placed again do
	// not bring it back at once. Source: Kubernetes' --eviction-pressure-transition-period.
	calmPressure = 5 * time.Minute
)

// Usage is what the machine has and what is used of it; amounts are bytes, and a capacity of 0 is not known.
type Usage struct {
	Now time.Time // with its monotonic reading
	// Memory is what the pods hold of the machine's, HostMemory what the host has left of all it has.
	Memory, MemoryCapacity      int64
	HostMemory, HostMemoryTotal int64
	Disk, DiskCapacity          int64 // what the pods hold of the disk that the machine was given
	FreeDisk, DiskSize          int64 // of the file system
	FreeInodes, Inodes          int64
	Processes, MostProcesses    int64 // of the host: threads, as the kernel counts them
	Address                     string
	AddressMissing              bool // no interface that is up has the machine's address
}

// Pressures are what a machine is short of. The zero Pressures are those of a machine that was not yet measured.
type Pressures struct{ Memory, Disk, PIDs Pressure }

// Pressure is a shortage of one resource.
type Pressure struct {
	Low       bool      // there is too little now
	Since     time.Time // when the shortage began; zero if there is none
	Enough    time.Time // since when there is enough again; zero if there is too little, or no shortage
	Available int64     // bytes, inodes or processes
	Threshold int64     // of which there must be more
	Of        string    // memory, ephemeral-storage, inodes or pids
}

// Under reports whether the condition is in force.
func (p Pressure) Under() bool { return !p.Since.IsZero() }

// signal is one measured amount.
type signal struct {
	of                   string
	available, threshold int64
	known                bool
}

// Observe returns what a machine is short of, given what it was short of before. A shortage ends when there was enough
// for five minutes.
func Observe(u Usage, before Pressures) Pressures {
	return Pressures{
		Memory: before.Memory.after(u.Now,
			signal{Memory, u.MemoryCapacity - u.Memory, min(leastMemory, u.MemoryCapacity/2), u.MemoryCapacity > 0},
			signal{Memory, u.HostMemory, min(leastMemory, u.HostMemoryTotal/2), u.HostMemoryTotal > 0}),
		Disk: before.Disk.after(u.Now,
			signal{EphemeralStorage, u.DiskCapacity - u.Disk, u.DiskCapacity / 100 * (100 - fullPercent), u.DiskCapacity > 0},
			signal{EphemeralStorage, u.FreeDisk, min(leastDisk, u.DiskSize/100*freePercent), u.DiskSize > 0},
			signal{"inodes", u.FreeInodes, u.Inodes / 100 * freeInodesPercent, u.Inodes > 0}),
		PIDs: before.PIDs.after(u.Now,
			signal{"pids", u.MostProcesses - u.Processes, u.MostProcesses / 100 * freePIDsPercent, u.MostProcesses > 0}),
	}
}

// after returns a shortage as it is now: that of the first signal which is low.
func (p Pressure) after(now time.Time, signals ...signal) Pressure {
	for _, s := range signals {
		if !s.known || s.available >= s.threshold {
			continue
		}
		since := p.Since
		if since.IsZero() {
			since = now
		}
		return Pressure{Low: true, Since: since, Available: s.available, Threshold: s.threshold, Of: s.of}
	}
	switch {
	case !p.Under():
		return Pressure{}
	case p.Enough.IsZero():
		p.Low, p.Enough = false, now
	case now.Sub(p.Enough) >= calmPressure:
		return Pressure{}
	}
	return p
}

// Conditions returns the conditions of a machine beside Ready.
func Conditions(u Usage, p Pressures) []*nodev1.NodeCondition {
	network := &nodev1.NodeCondition{Type: "NetworkUnavailable", Status: "False", Reason: new("AddressPresent")}
	if u.AddressMissing {
		network.Status, network.Reason = "True", new("AddressMissing")
		network.Message = new("no network interface that is up has the node's address " + u.Address)
	}
	return []*nodev1.NodeCondition{
		p.Memory.condition("MemoryPressure", "KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"),
		p.Disk.condition("DiskPressure", "KubeletHasNoDiskPressure", "KubeletHasDiskPressure"),
		p.PIDs.condition("PIDPressure", "KubeletHasSufficientPID", "KubeletHasInsufficientPID"),
		network,
	}
}

// condition says what there was too little of. It has no number that changes while it is in force, for each change is
// written.
func (p Pressure) condition(typ, enough, short string) *nodev1.NodeCondition {
	c := &nodev1.NodeCondition{Type: typ, Status: "False", Reason: &enough}
	if !p.Under() {
		return c
	}
	c.Status, c.Reason = "True", &short
	if p.Low {
		c.Message = new(fmt.Sprintf("less than %s of %s is available", quantity(p.Of, p.Threshold), p.Of))
	} else {
		c.Message = new(fmt.Sprintf("enough %s is available since %s; the condition ends %v after that", p.Of,
			p.Enough.UTC().Format(time.RFC3339), calmPressure))
	}
	return c
}

// quantity writes an amount of a resource as Kubernetes' quantities are written.
func quantity(of string, n int64) string {
	const ki, mi = 1 << 10, 1 << 20
	switch {
	case of != Memory && of != EphemeralStorage, n < ki:
		return fmt.Sprint(n)
	case n%mi == 0:
		return fmt.Sprintf("%dMi", n/mi)
	}
	return fmt.Sprintf("%dKi", n/ki)
}
