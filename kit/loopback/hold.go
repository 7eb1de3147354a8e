package loopback

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another process holds a network: the error says which.
var ErrHeld = errors.New("the network is in use")

// Hold takes the network with a number for the cluster of this process, until it is closed or the process ends. Nothing
// else keeps clusters of different users, or in different directories, from one network. It holds for what shares the
// loopback network: an abstract address of a Unix socket has the same scope, a network namespace. Source: unix(7).
func Hold(network int) (io.Closer, error) {
	address := fmt.Sprintf("@windlass/network/%d", network)
	l, err := net.Listen("unix", address)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if pid := listener(address); pid > 0 {
		return nil, fmt.Errorf("%w by process %d", ErrHeld, pid)
	}
	return nil, ErrHeld
}

// listener returns the process that listens at the address of a Unix socket; 0 if that cannot be known.
func listener(address string) int32 {
	conn, err := net.Dial("unix", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	var pid int32
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	return pid
}
