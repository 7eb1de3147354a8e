// Package example holds the documents that a new cluster begins with where the user names none.
package example

import (
	"embed"
	"os"
	"path"
	"path/filepath"
)

//go:embed first-cluster/*.yaml releases/1.0.0/*
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

// initialVersion is the release that a new cluster begins with.
const initialVersion = "1.0.0"

// WriteInitialRelease puts the manifests of the release that a new cluster begins with into a directory below dir,
// named by its version.
func WriteInitialRelease(dir string) (version string, err error) {
	from := path.Join("releases", initialVersion)
	entries, err := files.ReadDir(from)
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, initialVersion)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return "", err
	}
	for _, e := range entries {
		raw, err := files.ReadFile(path.Join(from, e.Name()))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), raw, 0o600); err != nil {
			return "", err
		}
	}
	return initialVersion, nil
}
