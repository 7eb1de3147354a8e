package harness

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// SetClock sets the wall clock of a running process ahead of the host's, behind it if ahead is negative, and right if
// it is zero. Its monotonic clock goes on as it does when the clock of a host is set. The new clock ends with the
// process. Without the right to write to the process's memory the test is skipped.
func (c *Cluster) SetClock(name string, ahead time.Duration) {
	c.t.Helper()
	if runtime.GOARCH != "amd64" {
		c.t.Skip("skipped: the clock of a process can be set on amd64 only")
	}
	p, err := c.find(name)
	if err != nil {
		c.t.Fatal(err)
	}
	switch err := setClock(p.PID, ahead); {
	case errors.Is(err, os.ErrPermission):
		c.t.Skipf("skipped: the clock of %s cannot be set: %v", p, err)
	case err != nil:
		c.t.Fatalf("set the clock of %s: %v", p, err)
	}
}

// setClock puts a function of our own in the place of the one by which a Go program reads its clocks. That is in the
// page that the kernel gives to each process for such functions (vDSO), whose end is unused, and the program finds it
// by a variable of Go's runtime.
func setClock(pid int, ahead time.Duration) error {
	if ahead%time.Second != 0 {
		return fmt.Errorf("%v: only whole seconds can be added", ahead)
	}
	variable, err := symbol(pid, "runtime.vdsoClockgettimeSym")
	if err != nil {
		return err
	}
	begin, end, err := vdso(pid)
	if err != nil {
		return err
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	page, current := make([]byte, end-begin), make([]byte, 8)
	if _, err := mem.ReadAt(page, begin); err != nil {
		return err
	}
	if _, err := mem.ReadAt(current, variable); err != nil {
		return err
	}
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second))
	at := int64(binary.LittleEndian.Uint64(current))
	switch {
	case at < begin || at >= end:
		return fmt.Errorf("the function at %#x is not in the vDSO, %#x to %#x", at, begin, end)
	case bytes.HasPrefix(page[at-begin:], clockGettime): // it is ours already
		_, err = mem.WriteAt(seconds, at-8)
		return err
	}
	const align = 64
	free := (int64(len(bytes.TrimRight(page, "\x00")))/align + 2) * align // at least one such unit beyond its end
	if free+align > int64(len(page)) {
		return errors.New("the vDSO has no room")
	}
	// The function before the variable: another thread may call it at any moment.
	if _, err := mem.WriteAt(append(seconds, clockGettime...), begin+free); err != nil {
		return err
	}
	_, err = mem.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(begin+free+8)), variable)
	return err
}

// clockGettime is clock_gettime(2) for amd64, which adds the seconds that are in the eight bytes before it to the wall
// clock.
var clockGettime = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, 228: clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 0x0a, // jne to ret
	0x48, 0x8b, 0x0d, 0xe6, 0xff, 0xff, 0xff, // mov rcx, [rip-26]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

// symbol returns the address of a variable of a program.
func symbol(pid int, name string) (int64, error) {
	f, err := elf.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC {
		return 0, fmt.Errorf("%v: it is not where its file says", f.Type)
	}
	list, err := f.Symbols()
	if err != nil {
		return 0, err
	}
	for _, s := range list {
		if s.Name == name {
			return int64(s.Value), nil
		}
	}
	return 0, fmt.Errorf("it has no symbol %s", name)
}

// vdso returns where the functions of the kernel are in a process.
func vdso(pid int) (begin, end int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &begin, &end)
			return begin, end, err
		}
	}
	return 0, 0, errors.New("it has no vDSO")
}
