package process

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	auditArch    = unix.AUDIT_ARCH_AARCH64
	otherNumbers = math.MaxUint32 // it has no others
)

// refusedHere are the system calls of refused that other architectures do not have.
var refusedHere = []uintptr{unix.SYS_NFSSERVCTL}
