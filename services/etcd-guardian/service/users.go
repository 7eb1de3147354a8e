package service

import (
	"encoding/json"

	"github.com/google/renameio/v2"
)

// The etcd users that the bootstrap member sets up besides root: each service may touch its own keys and its own election,
// and nothing else. The names are those in the certificates.
func users() []user {
	services := []string{
		"machine-api", "hook-broker", "etcd-guardian", "eviction-controller", "scheduler", "node-configurator", "update-orchestrator",
	}
	var list []user
	for _, s := range services {
		list = append(list, user{Name: s, Prefixes: []grant{
			{Prefix: "/windlass/" + s + "/", Permission: "readwrite"},
			{Key: "/windlass/elections/" + s, Permission: "readwrite"},
		}})
	}
	// The gateway routes to the leaders.
	return append(list, user{Name: "gateway", Prefixes: []grant{{Prefix: "/windlass/elections/", Permission: "read"}}})
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

func writeUsers(path string) error {
	b, err := json.MarshalIndent(users(), "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600)
}
