package service

import (
	"encoding/json"

	"github.com/google/renameio/v2"

	"github.com/windlass-dev/windlass/kit/topology"
)

// The etcd users that the bootstrap member sets up besides root: each service may change its own keys, its own election
// and what its processes announce, and read who leads and what is announced, and nothing else. The names are those in
// the certificates.
func users(onHosts bool) []user {
	services := topology.Services()
	if onHosts {
		services = topology.AllServices()
	}
	var list []user
	for _, s := range services {
		switch s.Etcd {
		case topology.OwnKeys:
			list = append(list, user{Name: s.Name, Prefixes: []grant{
				{Prefix: topology.Prefix(s.Name), Permission: "readwrite"},
				{Key: topology.ElectionKey(s.Name), Permission: "readwrite"},
				{Prefix: topology.EndpointsOf(s.Name), Permission: "readwrite"},
				{Prefix: topology.EndpointsPrefix, Permission: "read"},
				{Prefix: topology.ElectionsPrefix, Permission: "read"},
			}})
		case topology.ReadElections:
			list = append(list, user{Name: s.Name, Prefixes: []grant{
				{Key: topology.ElectionKey(s.Name), Permission: "readwrite"},
				{Prefix: topology.EndpointsOf(s.Name), Permission: "readwrite"},
				{Prefix: topology.EndpointsPrefix, Permission: "read"},
				{Prefix: topology.ElectionsPrefix, Permission: "read"},
			}})
		}
	}
	return list
}

// user and grant are the users file of the etcd-member program.
type user struct {
	Name     string  `json:"name"`
	Prefixes []grant `json:"prefixes"`
}

type grant struct {
	Prefix     string `json:"prefix,omitempty"`
	Key        string `json:"key,omitempty"`
	Permission string `json:"permission"`
}

func writeUsers(path string, onHosts bool) error {
	b, err := json.MarshalIndent(users(onHosts), "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600)
}
