package cluster

import (
	"slices"
	"testing"
)

// The flags of machine-api hold no address of the other programs' containers: it knows them by name.
func TestInContainersTheAddressesOfProgramsAreReserved(t *testing.T) {
	args := InContainers(t.TempDir(), Settings{Name: "x", Subnet: "172.31.250"}).Spec("machine-api", "/windlass").Args
	i := slices.Index(args, "--reserved")
	if i < 0 || args[i+1] != "172.31.250.0/27" {
		t.Errorf("machine-api is started with %q, want --reserved 172.31.250.0/27", args)
	}
}

func TestTheSchedulerGetsTheRangeOfServicesOfItsCluster(t *testing.T) {
	for network, want := range map[int]string{0: "", 1: "127.224.0.0/20", 18: "127.225.16.0/20"} {
		c := &Cluster{Settings: Settings{Name: "a", Subnet: "127.31.250", Network: network}, dir: t.TempDir()}
		args, got := c.Spec("scheduler", "/windlass").Args, ""
		if i := slices.Index(args, "--service-range"); i >= 0 {
			got = args[i+1]
		}
		if got != want {
			t.Errorf("the scheduler of network %d is started with %q, want the range %q", network, args, want)
		}
	}
}

func TestSettingsReplaceThoseOfTheSameFlag(t *testing.T) {
	has := []string{"scheduler.log-level=info", "gateway.peer=a=1", "gateway.peer=b=2"}
	for _, c := range []struct{ given, removed, want []string }{
		{nil, nil, has},
		{nil, []string{"gateway.peer", "gateway.other"}, []string{"scheduler.log-level=info"}},
		{[]string{"gateway.peer=c=3"}, []string{"gateway.peer", "scheduler.log-level"}, []string{"gateway.peer=c=3"}},
		{[]string{"scheduler.log-level=debug"}, nil, []string{
			"gateway.peer=a=1", "gateway.peer=b=2",
			"scheduler.log-level=debug",
		}},
		{[]string{"gateway.peer=c=3", "gateway.peer=d=4"}, nil, []string{
			"scheduler.log-level=info", "gateway.peer=c=3",
			"gateway.peer=d=4",
		}},
		{[]string{"gateway.log-level=debug"}, nil, append(slices.Clone(has), "gateway.log-level=debug")},
	} {
		if got := MergeSettings(has, c.given, c.removed); !slices.Equal(got, c.want) {
			t.Errorf("given %q, removed %q: %q, want %q", c.given, c.removed, got, c.want)
		}
	}
}
