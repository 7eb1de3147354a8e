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
