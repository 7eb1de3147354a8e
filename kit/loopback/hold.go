package loopback

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another process holds a network: the error says which.
var ErrHeld = errors.New("the network is in use")

// patience is how long a process may hold a network after it was asked to end.
const patience = 5 * time.Second

// Hold takes the network with a number for the cluster of this process, until it is closed or the process ends. Nothing
// else keeps clusters of different users, or in different directories, from one network. It holds for what shares the
// loopback network: an abstract address of a Unix socket has the same scope, a network namespace. Source: unix(7).
func Hold(network int) (io.Closer, error) {
	l, err := net.Listen("unix", addressOf(network))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, err
	}
	go func() { // those that ask who holds it must not fill its queue
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l, nil
}

// Await is Hold, and waits for a moment for a process that is just ending.
func Await(ctx context.Context, network int) (io.Closer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		held, err := Hold(network)
		if !errors.Is(err, ErrHeld) {
			return held, err
		}
		select {
		case <-ctx.Done():
			if pid, uid := Holder(network); pid > 0 {
				err = fmt.Errorf("%w by process %d of user %d", err, pid, uid)
			}
			return nil, err
		case <-tick.C:
		}
	}
}

func addressOf(network int) string { return fmt.Sprintf("@windlass/network/%d", network) }

// Holder returns the process that holds a network, and its user; 0 if none does or that cannot be known.
func Holder(network int) (pid int32, uid uint32) {
	conn, err := net.Dial("unix", addressOf(network))
	if err != nil {
		return 0, 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = cred.Pid, cred.Uid
		}
	})
	return pid, uid
}

// InUse reports whether a socket of this host has an address of a network: that of a cluster whose supervisor is not
// there, or is of a version that holds nothing. Source: proc_net(5).
func InUse(network int) bool {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/udp"} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		found := anyIn(f, PodRange(network), ServiceRange(network))
		f.Close()
		if found {
			return true
		}
	}
	return false
}

// anyIn reports whether a table of sockets has a local address in one of some ranges.
func anyIn(table io.Reader, ranges ...netip.Prefix) bool {
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		address, _, _ := strings.Cut(fields[1], ":")
		raw, err := hex.DecodeString(address) // of a number in the order of this machine
		if err != nil || len(raw) != 4 {
			continue
		}
		binary.NativeEndian.PutUint32(raw, binary.BigEndian.Uint32(raw))
		for _, r := range ranges {
			if r.Contains(netip.AddrFrom4([4]byte(raw))) {
				return true
			}
		}
	}
	return false
}
