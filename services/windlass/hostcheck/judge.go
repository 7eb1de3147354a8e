// Package hostcheck checks whether a host can carry a control plane.
package hostcheck

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verdict is the result of one check.
type Verdict string

const (
	pass Verdict = "OK"
	warn Verdict = "WARN" // the host can be used, with the consequence that the message names
	fail Verdict = "FAIL" // the host cannot be used
)

// Result is what one check found.
type Result struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Message string  `json:"message"`
}

// Facts is what was observed of a host.
type Facts struct {
	Address  string
	Local    error          // why the address is not one of the host; nil if it is
	Taken    map[int]string // ports of the cluster's programs that are in use, and the error
	Own      bool           // the host is in a cluster already, whose programs may have the ports
	Volatile bool           // the directory is in memory: a reboot removes what is in it
	Free     uint64         // bytes free to the user on the disk of the directory
	DiskErr  error          // why the disk could not be written
	Syncs    []time.Duration
	Synced   bool // the kernel says that the clock is synchronized
	ClockErr error
	Memory   uint64 // bytes
	Files    uint64 // that a process may open
	Root     bool
	Cgroups  bool // control groups with the controllers cpu and memory can be made
}

// Limits of the checks. The times of writes are those that etcd's documentation demands of its log ("99th percentile of
// fdatasync below 10 ms"); from 100 ms on a heartbeat of 100 ms is missed at each of them.
const (
	leastFree, lowFree     = 1 << 30, 8 << 30
	slowSync, tooSlowSync  = 10 * time.Millisecond, 100 * time.Millisecond
	leastMemory, lowMemory = 512 << 20, 2 << 30
	leastFiles, lowFiles   = 1024, 16384
)

// Judge returns the results of all checks, in the order in which they are shown.
func Judge(f Facts) []Result {
	return []Result{
		address(f), ports(f), disk(f), syncs(f), clock(f), memory(f), files(f), user(f), groups(f),
	}
}

// Usable reports whether no check failed.
func Usable(list []Result) bool {
	return !slices.ContainsFunc(list, func(r Result) bool { return r.Verdict == fail })
}

func address(f Facts) Result {
	if f.Local != nil {
		return Result{"address", fail, f.Local.Error()}
	}
	return Result{"address", pass, f.Address + " is an address of this host"}
}

func ports(f Facts) Result {
	switch {
	case f.Local != nil:
		return Result{"ports", fail, "not checked: the address is not one of this host"}
	case len(f.Taken) == 0:
		return Result{"ports", pass, "all are free"}
	case f.Own:
		return Result{"ports", pass, fmt.Sprintf("%d are in use, on a host that is in a cluster already", len(f.Taken))}
	}
	var list []string
	for port := range f.Taken {
		list = append(list, fmt.Sprint(port))
	}
	slices.Sort(list)
	return Result{"ports", fail, "in use: " + strings.Join(list, ", ")}
}

func disk(f Facts) Result {
	text := fmt.Sprintf("%.1f GiB free", float64(f.Free)/(1<<30))
	switch {
	case f.DiskErr != nil:
		return Result{"disk", fail, f.DiskErr.Error()}
	case f.Volatile:
		return Result{"disk", warn, text + ", in memory: all that the cluster stores here is lost when the host restarts"}
	case f.Free < leastFree:
		return Result{"disk", fail, text + ", 1 GiB is needed: etcd's database, its snapshots, logs"}
	case f.Free < lowFree:
		return Result{"disk", warn, text + ", 8 GiB are advised: etcd's database may take 2 GiB, and each snapshot as much"}
	}
	return Result{"disk", pass, text}
}

func syncs(f Facts) Result {
	if f.DiskErr != nil || len(f.Syncs) == 0 {
		return Result{"fsync", fail, "not measured: the disk cannot be written"}
	}
	sorted := slices.Sorted(slices.Values(f.Syncs))
	slow := sorted[(len(sorted)*99+99)/100-1]
	text := fmt.Sprintf("99 %% of %d synced writes took %s or less", len(sorted), slow.Round(10*time.Microsecond))
	switch {
	case slow > tooSlowSync:
		return Result{"fsync", fail, text + ", more than 100 ms: etcd's leader would change again and again"}
	case slow > slowSync:
		return Result{"fsync", warn, text + ", more than 10 ms: each write of the cluster waits for it"}
	}
	return Result{"fsync", pass, text}
}

func clock(f Facts) Result {
	switch {
	case f.ClockErr != nil:
		return Result{"clock", warn, "not known whether it is synchronized: " + f.ClockErr.Error()}
	case !f.Synced:
		return Result{
			"clock", warn,
			"not synchronized: certificates and times of events depend on it; run chrony or systemd-timesyncd",
		}
	}
	return Result{"clock", pass, "synchronized"}
}

func memory(f Facts) Result {
	text := fmt.Sprintf("%.1f GiB", float64(f.Memory)/(1<<30))
	switch {
	case f.Memory < leastMemory:
		return Result{"memory", fail, text + ", 0.5 GiB are needed: the programs take that much when idle"}
	case f.Memory < lowMemory:
		return Result{"memory", warn, text + ", 2 GiB are advised"}
	}
	return Result{"memory", pass, text}
}

func files(f Facts) Result {
	text := fmt.Sprintf("a process may open %d", f.Files)
	switch {
	case f.Files < leastFiles:
		return Result{"files", fail, text + ", 1024 are needed (ulimit -n)"}
	case f.Files < lowFiles:
		return Result{"files", warn, text + ", 16384 are advised: the gateway takes a quarter of them for strangers"}
	}
	return Result{"files", pass, text}
}

func user(f Facts) Result {
	if !f.Root {
		return Result{
			"user", warn,
			"not root: pods run as the user of the programs, who can read the cluster's keys",
		}
	}
	return Result{"user", pass, "root"}
}

func groups(f Facts) Result {
	if !f.Cgroups {
		return Result{"cgroups", warn, "no control groups can be made: limits of pods are not in force"}
	}
	return Result{"cgroups", pass, "control groups can be made"}
}
