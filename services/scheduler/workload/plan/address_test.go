package plan_test

import (
	"net/netip"
	"testing"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func TestAFreeAddressIsSearchedFromTheStart(t *testing.T) {
	r := netip.MustParsePrefix("127.224.16.0/28")
	all := func(netip.Addr) bool { return true }
	for name, tt := range map[string]struct {
		start uint32
		taken func(netip.Addr) bool
		want  string // empty if there is none
	}{
		"the one at the start":             {3, nil, "127.224.16.3"},
		"not the first":                    {0, nil, "127.224.16.1"},
		"not that of DNS":                  {10, nil, "127.224.16.11"},
		"not the last":                     {15, nil, "127.224.16.1"},
		"the start is taken modulo":        {16 + 4, nil, "127.224.16.4"},
		"also of a number near the limit":  {1<<32 - 1, nil, "127.224.16.1"},
		"not one that is taken":            {3, func(a netip.Addr) bool { return a.As4()[3] < 6 }, "127.224.16.6"},
		"the search goes on at the front":  {13, func(a netip.Addr) bool { return a.As4()[3] > 12 }, "127.224.16.1"},
		"none if all are taken":            {3, all, ""},
		"none of the reserved ones either": {10, func(a netip.Addr) bool { return a.As4()[3]%5 != 0 || a.As4()[3] == 5 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.taken == nil {
				tt.taken = func(netip.Addr) bool { return false }
			}
			a, ok := plan.FreeAddress(r, tt.start, tt.taken)
			if ok != (tt.want != "") || ok && a.String() != tt.want {
				t.Errorf("FreeAddress = %v, %t, want %q", a, ok, tt.want)
			}
		})
	}
}

func TestAFreeAddressOfALargeRangeHasAllItsBytes(t *testing.T) {
	a, _ := plan.FreeAddress(netip.MustParsePrefix("127.224.240.0/20"), 15*256+254, func(netip.Addr) bool { return false })
	if a.String() != "127.224.255.254" {
		t.Errorf("FreeAddress = %v", a)
	}
}
