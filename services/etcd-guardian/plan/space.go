package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Limits of etcd's space. Freed space stays in the file of a database until it is defragmented, which stops the member meanwhile.
const (
	defragmentFrom = 100 << 20        // bytes: a smaller file is not worth the stop
	defragmentFree = 50               // percent of the file that must be free; source: OpenShift's etcd operator, which takes 45
	shrinkFree     = 10               // the same while writes are refused for want of space
	disarmBelow    = 80               // percent of the quota that every database must be below before writes are allowed again
	compactAgain   = 30 * time.Second // until old revisions are dropped once more
)

// space keeps the databases below their quota: while etcd refuses writes (alarm NOSPACE) it drops old revisions, defragments, and ends the alarm when space
// is back; otherwise it defragments what is mostly free. One member at a time, the leader last, and not while somebody has the permit. Without
// space the permit cannot be written, and nobody else can get it either; endPermit ends one that is held. All voters are healthy here.
func (d *decision) space() bool {
	if d.Permit != nil {
		return false
	}
	voters := slices.Clone(d.voters)
	slices.SortStableFunc(voters, func(a, b Member) int { return cmp.Compare(rankLeader(a), rankLeader(b)) })
	full := false
	for _, m := range voters {
		free := m.DBSize - m.DBInUse
		tight := m.Quota > 0 && m.DBSize*100 >= m.Quota*disarmBelow
		full = full || tight
		machine, _ := d.MachineOfMember(m)
		if d.NoSpace && tight && free*100 >= m.DBSize*shrinkFree || m.DBSize >= defragmentFrom && free*100 >= m.DBSize*defragmentFree {
			return d.do(Action{
				Kind: Defragment, Member: m, Machine: machine,
				Reason: fmt.Sprintf("%d of the %d MiB of its database are free", free>>20, m.DBSize>>20),
			})
		}
	}
	switch {
	case !d.NoSpace:
		return false
	case !full:
		return d.do(Action{Kind: Disarm, Reason: "there is space again"})
	case d.Compacted && d.early(d.CompactedFor, compactAgain):
		return d.stuck("space: etcd refuses writes; delete objects, or give the members a larger quota")
	}
	return d.do(Action{Kind: Compact, Reason: "etcd has no space left and refuses writes"})
}

// ForSpace reports whether the action is one by which a full etcd gets space again.
func (a Action) ForSpace() bool {
	return a.Kind == FreePermit || a.Kind == Compact || a.Kind == Defragment || a.Kind == Disarm
}

func rankLeader(m Member) int {
	if m.Leader {
		return 1
	}
	return 0
}
