package loopback

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

func TestTheRangesOfClustersDoNotOverlap(t *testing.T) {
	var all []netip.Prefix
	machines := []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/16"), netip.MustParsePrefix("127.16.0.0/12"), netip.MustParsePrefix("127.32.0.0/11"),
		netip.MustParsePrefix("127.64.0.0/10"), netip.MustParsePrefix("127.128.0.0/10"),
		netip.MustParsePrefix("127.192.0.0/11"), netip.MustParsePrefix("127.239.0.0/16"),
		netip.MustParsePrefix("127.255.0.0/16"),
	}
	for n := 1; n <= Networks; n++ {
		for _, p := range []netip.Prefix{PodRange(n), ServiceRange(n)} {
			if !p.Addr().IsLoopback() || p.Masked() != p || p.Bits() != 20 {
				t.Fatalf("range %s of network %d", p, n)
			}
			for _, other := range append(machines, all...) {
				if p.Overlaps(other) {
					t.Fatalf("range %s of network %d overlaps %s", p, n, other)
				}
			}
			all = append(all, p)
		}
	}
	for n, want := range map[int]string{1: "127.224.0.0/20", 17: "127.225.0.0/20", Networks: "127.238.240.0/20"} {
		if p := ServiceRange(n); p.String() != want {
			t.Errorf("services of network %d have the range %s, want %s", n, p, want)
		}
	}
}

func small(t *testing.T) Addresses {
	return Addresses{Dir: filepath.Join(t.TempDir(), "pods"), Range: netip.MustParsePrefix("127.240.0.0/28")}
}

func TestAnAddressIsGivenOutOnceAndNotSoonAgain(t *testing.T) {
	a := small(t)
	first, err := a.Take("m-0", "pod-a")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Release(first, "m-0", "pod-a"); err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]bool{}
	for i := range 14 {
		ip, err := a.Take("m-"+strconv.Itoa(i%2), strconv.Itoa(i))
		if err != nil || seen[ip] || !a.Range.Contains(ip) {
			t.Fatalf("address %v: %v", ip, err)
		}
		if ip == first && i < 13 {
			t.Errorf("%v was given out again after %d others of 13", ip, i)
		}
		seen[ip] = true
	}
	if ip, err := a.Take("m-0", "z"); !errors.Is(err, errFull) {
		t.Errorf("address %v, %v although all are taken", ip, err)
	}
}

func TestConcurrentProcessesDoNotGetTheSameAddress(t *testing.T) {
	a := small(t)
	var mu sync.Mutex
	seen := map[netip.Addr]bool{}
	var group sync.WaitGroup
	for i := range 14 {
		group.Go(func() {
			ip, err := a.Take("m", strconv.Itoa(i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[ip] {
				t.Errorf("address %v: %v", ip, err)
			}
			seen[ip] = true
		})
	}
	group.Wait()
}

func TestOnlyTheOwnerGivesAnAddressBack(t *testing.T) {
	a := small(t)
	ip, err := a.Take("m-0", "a")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := a.Take("m-0", "b")
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.Take("m-00", "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Release(ip, "m-1", "a"); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.Claim(ip, "m-1", "a"); ok || err != nil {
		t.Errorf("another one has it: %v", err)
	}
	if ok, err := a.Claim(ip, "m-0", "a"); !ok || err != nil {
		t.Errorf("its owner does not have it: %v", err)
	}
	if err := a.Sweep("m-0", func(_, of string) bool { return of == "b" }); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ip   netip.Addr
		free bool
	}{{ip, true}, {kept, false}, {other, false}} {
		if ok, err := a.Claim(tt.ip, "m-9", "x"); ok != tt.free || err != nil {
			t.Errorf("%v is free: %v, want %v; %v", tt.ip, ok, tt.free, err)
		}
	}
}
