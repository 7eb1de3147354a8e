// Package loopback divides the loopback network 127.0.0.0/8 of a host among the clusters on it. Each cluster has a
// number, and with it a range for the addresses of its services and one for those of its pods, in which each pod claims
// one. Claims are files: they outlive the processes that made them.
package loopback

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Networks is how many clusters of a host can have ranges; their numbers are 1 to Networks.
const Networks = 240

const (
	rangeBits = 20 // 4,096 addresses
	perSecond = 16 // ranges of a second number of an address

	// Machines have second numbers below these (services/windlass/cluster).
	firstOfServices = 224 // 127.224.0.0 to 127.238.255.255
	firstOfPods     = 240 // 127.240.0.0 to 127.254.255.255
)

// PodRange returns the range for the pods of the cluster with a number.
func PodRange(network int) netip.Prefix { return rangeFrom(firstOfPods, network) }

// ServiceRange returns the range for the services of the cluster with a number.
func ServiceRange(network int) netip.Prefix { return rangeFrom(firstOfServices, network) }

// rangeFrom returns the range of a network where those of network 1 have a second number.
func rangeFrom(second, network int) netip.Prefix {
	n := network - 1
	a := netip.AddrFrom4([4]byte{127, byte(second + n/perSecond), byte(n % perSecond * perSecond), 0})
	return netip.PrefixFrom(a, rangeBits)
}

// errFull means that everything is claimed.
var errFull = errors.New("all are taken")

// unwritten is how old a new claim is before it counts as left by a process that ended while it made it.
const unwritten = time.Minute

// Addresses are the addresses of one range, of which the agents of a host take some for their pods. The directory is
// shared by all of them. Methods may be called concurrently, also by several processes. The zero Addresses has none.
type Addresses struct {
	Dir   string
	Range netip.Prefix
}

// PodsDir is the directory with the addresses of pods in the one that the agents of a host share.
const PodsDir = "pods"

// lastFile holds the address that was taken last.
const lastFile = "last"

// Take claims the next free address for an owner: a holder, such as a machine, and what of it has the address.
// Addresses are taken in turn, so that one that was given back is not soon another one's. Neither part may be empty or
// contain a line break.
func (a Addresses) Take(holder, of string) (netip.Addr, error) {
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return netip.Addr{}, err
	}
	next := a.Range.Addr()
	if raw, err := os.ReadFile(filepath.Join(a.Dir, lastFile)); err == nil {
		if last, err := netip.ParseAddr(strings.TrimSpace(string(raw))); err == nil && a.Range.Contains(last) {
			next = last
		}
	}
	for range 1 << (next.BitLen() - a.Range.Bits()) {
		if next = next.Next(); !a.Range.Contains(next) {
			next = a.Range.Addr()
		}
		if !a.usable(next) {
			continue
		}
		ok, err := a.Claim(next, holder, of)
		if err != nil {
			return netip.Addr{}, err
		}
		if ok {
			// If this is lost, an address is only sooner given out again.
			_ = os.WriteFile(filepath.Join(a.Dir, lastFile), []byte(next.String()), 0o600)
			return next, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("addresses of pods in %s: %w", a.Range, errFull)
}

// usable leaves out the first and the last address of the range.
func (a Addresses) usable(ip netip.Addr) bool {
	return a.Range.Contains(ip) && a.Range.Contains(ip.Next()) && ip != a.Range.Addr()
}

// Claim claims one address, and reports whether the owner has it now. It is false for an address of another owner, and
// for one that is not in the range.
func (a Addresses) Claim(ip netip.Addr, holder, of string) (bool, error) {
	if !a.Range.IsValid() || !a.usable(ip) {
		return false, nil
	}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return false, err
	}
	file, owner := filepath.Join(a.Dir, ip.String()), holder+"\n"+of+"\n"
	// A link is made at once with its content, so that there is never a claim without its owner.
	temp, err := os.CreateTemp(a.Dir, "new-")
	if err != nil {
		return false, err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(owner)
	if err := errors.Join(err, temp.Close()); err != nil {
		return false, err
	}
	err = os.Link(temp.Name(), file)
	if errors.Is(err, fs.ErrExist) {
		has, err := os.ReadFile(file)
		return err == nil && string(has) == owner, nil
	}
	return err == nil, err
}

// Release gives back an address if its owner has it. It succeeds if another one has it, or none.
func (a Addresses) Release(ip netip.Addr, holder, of string) error {
	file := filepath.Join(a.Dir, ip.String())
	has, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || string(has) != holder+"\n"+of+"\n" {
		return err
	}
	return gone(os.Remove(file))
}

// Sweep gives back the addresses of a holder but those that keep reports. Only the holder itself, or the one that
// removes it, may call it.
func (a Addresses) Sweep(holder string, keep func(ip, of string) bool) error {
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		file := filepath.Join(a.Dir, e.Name())
		if strings.HasPrefix(e.Name(), "new-") {
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > unwritten {
				_ = os.Remove(file)
			}
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it was given back
		}
		of, mine := strings.CutPrefix(string(raw), holder+"\n")
		if !mine || keep(e.Name(), strings.TrimSuffix(of, "\n")) {
			continue
		}
		if err := gone(os.Remove(file)); err != nil {
			return err
		}
	}
	return nil
}

// gone returns nil for what does not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
