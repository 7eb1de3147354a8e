package service

import (
	"slices"
	"testing"

	"github.com/windlass-dev/windlass/kit/topology"
)

func TestAServiceOnHostsIsAUserOfEtcdOnlyThere(t *testing.T) {
	has := func(onHosts bool) bool {
		return slices.ContainsFunc(users(onHosts), func(u user) bool { return u.Name == topology.ProviderInventory })
	}
	if has(false) || !has(true) {
		t.Errorf("%s is a user in a cluster on one machine: %v, and on hosts: %v", topology.ProviderInventory,
			has(false), has(true))
	}
}
