package cluster

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestAuthoritiesAreMadeOnlyWithANewCluster(t *testing.T) {
	start := func(c *Cluster) error {
		_, err := c.EnsureCertificates(time.Now())
		return err
	}
	fresh := func(t *testing.T) *Cluster {
		t.Helper()
		c := InContainers(t.TempDir(), Settings{Name: "x", Subnet: "127.9.9", Lifetime: Lifetime(time.Hour)})
		if err := start(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	allowed := func(c *Cluster) bool {
		_, err := os.Stat(c.Service("etcd-guardian", "bootstrap", "allowed"))
		return err == nil
	}
	c := fresh(t)
	if !allowed(c) {
		t.Error("the first start does not allow an empty etcd")
	}
	if err := os.RemoveAll(c.Service("etcd-guardian")); err != nil {
		t.Fatal(err)
	}
	if err := start(c); err != nil || allowed(c) {
		t.Errorf("a guardian's directory that was lost: %v, an empty etcd is allowed: %v", err, allowed(c))
	}
	for _, lost := range []string{
		"windlass-ca.key", "windlass-ca.crt", "etcd-client-ca.key", "etcd-peer-ca.key",
		"etcd-peer-ca.crt",
	} {
		c := fresh(t)
		before, err := os.ReadFile(c.Dir("pki", "etcd-client-ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(c.Dir("pki", lost)); err != nil {
			t.Fatal(err)
		}
		err = start(c)
		if err == nil || !strings.Contains(err.Error(), c.Dir("pki", lost)) {
			t.Errorf("without %s: %v, want an error that names it", lost, err)
		}
		if after, err := os.ReadFile(c.Dir("pki", "etcd-client-ca.crt")); err != nil || string(after) != string(before) {
			t.Errorf("without %s another authority was changed", lost)
		}
	}
	c = fresh(t)
	if err := os.RemoveAll(c.Dir("pki")); err != nil {
		t.Fatal(err)
	}
	if err := start(c); err == nil || !strings.Contains(err.Error(), "windlass-ca.crt") {
		t.Errorf("without any key: %v, want an error that names one", err)
	}
}

func TestAFirstStartThatWasCutOffGoesOn(t *testing.T) {
	c := InContainers(t.TempDir(), Settings{Name: "x", Subnet: "127.9.9", Lifetime: Lifetime(time.Hour)})
	if err := os.MkdirAll(c.Dir("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	if first, err := c.begin(); err != nil || !first {
		t.Fatalf("begin = %v, %v", first, err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Service("etcd-guardian", "bootstrap", "allowed")); err != nil {
		t.Error(err)
	}
	if first, err := c.begin(); err != nil || first {
		t.Errorf("after it: begin = %v, %v", first, err)
	}
}

func TestRecordKeysAreMadeOnlyWithANewCluster(t *testing.T) {
	c := newCluster(t)
	ring := c.recordKeys("machine-api")
	if err := os.Remove(ring); err != nil {
		t.Fatal(err)
	}
	expired := c.Dir("admin", "tls.crt")
	if err := os.Remove(expired); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err == nil || !strings.Contains(err.Error(), ring) ||
		!strings.Contains(err.Error(), "restore") {
		t.Errorf("a lost key ring: %v, want an error that names it and what to do", err)
	}
	if _, err := os.Stat(expired); err != nil {
		t.Errorf("a lost key ring keeps certificates from being made: %v", err)
	}
	if _, err := c.RotateRecordKeys(time.Now()); err == nil || !strings.Contains(err.Error(), "restore") {
		t.Errorf("a rotation of lost keys: %v, want an error that says what to do", err)
	}
	if _, err := os.Stat(ring); !os.IsNotExist(err) {
		t.Errorf("other keys took the place of those that were lost: %v", err)
	}
}

func TestAClusterOfAnOlderVersionGetsTheKeyRingOfTheScheduler(t *testing.T) {
	c := newCluster(t)
	ring, kept := c.recordKeys("scheduler"), c.recordKeys("machine-api")
	before, err := os.ReadFile(kept)
	if err = errors.Join(err, os.Remove(ring), os.Remove(c.laterRecordKeys())); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ring); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(kept); err != nil || string(after) != string(before) {
		t.Errorf("the ring of machine-api changed: %v", err)
	}
	if err := os.Remove(ring); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err == nil || !strings.Contains(err.Error(), ring) {
		t.Errorf("a ring that is lost later: %v, want an error that names it", err)
	}
}
