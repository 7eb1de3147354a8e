package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/windlass-dev/windlass/kit/identity"
)

// Members reads etcd past Windlass, each member by itself. Its methods may be called concurrently.
type Members struct {
	site *site
	tls  *tls.Config

	mu      sync.Mutex
	clients map[string]*clientv3.Client // by client URL
}

// Root looks with the rights of etcd's root: the guardian's own certificate.
func (s *site) Root() (*Members, error) { return s.members("etcd-guardian", "etcd-root") }

// MachineAPI looks with the rights of machine-api.
func (s *site) MachineAPI() (*Members, error) { return s.members("machine-api", "etcd") }

func (s *site) members(service, name string) (*Members, error) {
	dir := s.Dir("services", service, "tls")
	cfg, err := identity.Files{
		Cert: path.Join(dir, name+".crt"), Key: path.Join(dir, name+".key"),
		CA: path.Join(dir, "etcd-ca.crt"),
	}.ClientTLS("")
	if err != nil {
		return nil, err
	}
	return &Members{site: s, tls: cfg, clients: map[string]*clientv3.Client{}}, nil
}

// Close ends all connections.
func (m *Members) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clients {
		c.Close()
	}
	m.clients = map[string]*clientv3.Client{}
}

// Only returns a client that talks to the one member at a URL.
func (m *Members) Only(url string) (*clientv3.Client, error) {
	url = m.site.beyond(url)
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[url]; c != nil {
		return c, nil
	}
	c, err := m.client([]string{url})
	if err != nil {
		return nil, err
	}
	m.clients[url] = c
	return c, nil
}

// client returns a client of the caller's own.
func (m *Members) client(urls []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: urls, TLS: m.tls.Clone(), Logger: zap.NewNop(), DialTimeout: 2 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		BackoffWaitBetween: 20 * time.Millisecond,
	})
}

// Forget ends the connections to members that are not in the list.
func (m *Members) Forget(list []*etcdserverpb.Member) {
	known := map[string]bool{}
	for _, e := range list {
		for _, u := range e.GetClientURLs() {
			known[m.site.beyond(u)] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for u, c := range m.clients {
		if !known[u] {
			c.Close()
			delete(m.clients, u)
		}
	}
}

// List returns the members as a majority knows them: the first answer of those at the URLs. Some of them may be gone.
func (m *Members) List(ctx context.Context, urls []string) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	type answer struct {
		list []*etcdserverpb.Member
		err  error
	}
	answers := make(chan answer, len(urls))
	for _, u := range urls {
		go func() {
			c, err := m.Only(u)
			if err != nil {
				answers <- answer{nil, err}
				return
			}
			got, err := c.MemberList(ctx) // linearizable
			if err != nil {
				answers <- answer{nil, fmt.Errorf("%s: %w", u, err)}
				return
			}
			answers <- answer{got.Members, nil}
		}()
	}
	errs := []error{errors.New("no member answers")}
	for range urls {
		a := <-answers
		if a.err == nil {
			return a.list, nil
		}
		errs = append(errs, a.err)
	}
	return nil, errors.Join(errs...)
}

// Keys returns the keys below a prefix as one member has them, whatever the others say.
func (m *Members) Keys(ctx context.Context, url, prefix string) (map[string]bool, error) {
	const pageSize = 5000
	c, err := m.Only(url)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, err := c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithSerializable(),
			clientv3.WithLimit(pageSize))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
		for _, kv := range page.Kvs {
			out[strings.TrimPrefix(string(kv.Key), prefix)] = true
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			return out, nil
		}
	}
}

// urls returns the client URLs of a list.
func urlsOf(list []*etcdserverpb.Member) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.GetClientURLs()...)
	}
	return out
}
