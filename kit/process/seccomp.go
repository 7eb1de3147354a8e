package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are the system calls that a confined process cannot make. Source: those that the default profile of
// container engines (moby, profiles/seccomp/default.json) allows to no process without capabilities of the host.
var refused = append([]uintptr{
	// mounts and namespaces; CLONE_NEWUSER of clone stays possible, since the process itself begins with it
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
	unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	// keys are not kept apart by namespaces
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	// large parts of the kernel
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER,
	// the host as a whole
	unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE,
	unix.SYS_DELETE_MODULE, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE,
}, refusedHere...)

// Offsets in struct seccomp_data of linux/seccomp.h.
const (
	seccompNumber = 0
	seccompArch   = 4
)

// filter returns the program that refuses system calls: with EPERM, and with ENOSYS those of another architecture.
func filter() []unix.SockFilter {
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	jump := func(code uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k}
	}
	const load, equal, atLeast, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	out := []unix.SockFilter{
		statement(load, seccompArch),
		jump(equal, auditArch, 1, 0),
		statement(ret, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)),
		statement(load, seccompNumber),
		jump(atLeast, otherNumbers, 0, 1),
		statement(ret, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)),
	}
	for _, number := range refused {
		out = append(out, jump(equal, uint32(number), 0, 1), statement(ret, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))
	}
	return append(out, statement(ret, unix.SECCOMP_RET_ALLOW))
}

// confine refuses the calling thread, which must be locked and end soon, what Spec.Confined says. It has no_new_privs.
func confine() error {
	program := filter()
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// CanConfine returns why processes here cannot be Confined; nil if they can.
func CanConfine() error {
	actions, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err == nil && !strings.Contains(string(actions), "errno") {
		err = errors.New("the kernel has no seccomp filters that refuse system calls")
	}
	return err
}
