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
