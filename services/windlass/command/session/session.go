// Package session is how a command reaches the user and a cluster: input, outputs, and the cluster and namespace that
// the flags select.
package session

import (
	"cmp"
	"fmt"
	"io"

	"github.com/windlass-dev/windlass/services/windlass/client"
)

// Env holds what all verbs share: input, outputs, and the cluster and namespace that the flags select.
type Env struct {
	In        io.Reader
	Out, Err  io.Writer
	Target    client.Target
	Namespace string
	Program   string // path of this executable

	custom *[]client.Kind // of CustomResourceDefinitions; nil until they are read
}

// WithClient calls f with a client of the selected cluster.
func (e *Env) WithClient(f func(*client.Client) error) error {
	c, end, err := e.connect()
	if err != nil {
		return err
	}
	defer end()
	return f(c)
}

// connect returns a client of the selected cluster and a function that closes its connection.
func (e *Env) connect() (*client.Client, func(), error) {
	t, err := e.Target.Resolve()
	if err != nil {
		return nil, nil, err
	}
	t.Warn = func(text string) { fmt.Fprintln(e.Err, "Warning:", text) }
	conn, err := client.Dial(t)
	if err != nil {
		return nil, nil, err
	}
	return client.New(conn), func() { conn.Close() }, nil
}

// NamespaceOf returns the selected namespace for objects of a kind; "" for kinds without namespaces.
func (e *Env) NamespaceOf(k client.Kind) string {
	switch {
	case !k.GetNamespaced():
		return ""
	case e.Namespace != "":
		return e.Namespace
	case k.GetDefaultNamespace() == "default":
		return e.PodNamespace()
	}
	return k.GetDefaultNamespace()
}

// PodNamespace returns the selected namespace for pods; in a pod, its own is the default.
func (e *Env) PodNamespace() string {
	return cmp.Or(e.Namespace, e.Target.PodNamespace(), "default")
}
