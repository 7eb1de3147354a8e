// Package example holds the documents that a new cluster begins with where the user names none.
package example

import (
	"embed"
	"path"
)

//go:embed first-cluster/*.yaml
var files embed.FS

// FirstCluster returns the documents of the first-cluster example by file name.
func FirstCluster() (map[string][]byte, error) {
	entries, err := files.ReadDir("first-cluster")
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, e := range entries {
		raw, err := files.ReadFile(path.Join("first-cluster", e.Name()))
		if err != nil {
			return nil, err
		}
		out[e.Name()] = raw
	}
	return out, nil
}
