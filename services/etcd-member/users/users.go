// Package users says who may touch which keys of a Windlass etcd cluster, and sets that up: one etcd user and
// one role of the same name per entry, without passwords (a user is the common name of a client certificate),
// and root, which may do everything.
//
// It only adds: users, roles and permissions that are not in the list stay as they are.
package users

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Root is the user and the role that may do everything. It is always set up and never listed.
const Root = "root"

// What a Grant may allow.
const (
	Read      = "read"
	ReadWrite = "readwrite"
)

// User is one entry of the list.
type User struct {
	Name     string  `json:"name"`     // of the user and of its role
	Prefixes []Grant `json:"prefixes"` // what it may touch
}

// Grant allows the keys that start with Prefix or the one Key; exactly one of them is set.
type Grant struct {
	Prefix     string `json:"prefix,omitempty"`
	Key        string `json:"key,omitempty"`
	Permission string `json:"permission"` // Read or ReadWrite
}

// Load reads a list of users from a JSON file and checks it.
func Load(path string) ([]User, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("users file: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var list []User
	if err := dec.Decode(&list); err != nil {
		return nil, fmt.Errorf("users file %s: %w", path, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("users file %s: something follows the list", path)
	}
	if err := check(list); err != nil {
		return nil, fmt.Errorf("users file %s: %w", path, err)
	}
	return list, nil
}

func check(list []User) error {
	seen := map[string]bool{}
	for i, u := range list {
		switch {
		case u.Name == "":
			return fmt.Errorf("[%d].name: is empty", i)
		case u.Name == Root:
			return fmt.Errorf("[%d].name: %q is always set up and must not be listed", i, Root)
		case seen[u.Name]:
			return fmt.Errorf("[%d].name: %q is listed twice", i, u.Name)
		}
		seen[u.Name] = true
		for j, g := range u.Prefixes {
			if err := g.check(); err != nil {
				return fmt.Errorf("[%d].prefixes[%d]: %w", i, j, err)
			}
		}
	}
	return nil
}

func (g Grant) check() error {
	if (g.Prefix == "") == (g.Key == "") {
		return errors.New("wants exactly one of prefix and key")
	}
	if g.Permission != Read && g.Permission != ReadWrite {
		return fmt.Errorf("permission %q: want %q or %q", g.Permission, Read, ReadWrite)
	}
	return nil
}
