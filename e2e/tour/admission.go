package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/webhook/reach"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	groupKey       = "dedicated" // of the taint and the label of the group's nodes
	groupName      = "tour-group"
	webhookSetting = "scheduler.webhook-allow"
)

// admit dedicates a node to the users of a namespace with an admission controller in another language.
func (t *tour) admit(ctx context.Context) error {
	at, ok := hostAddress()
	if !ok {
		t.saw("left out: this host has only loopback and link-local addresses, and no webhook may be there")
		return nil
	}
	workers, err := t.workerNodes(ctx)
	if err != nil {
		return err
	}
	if err := t.check(expect(len(workers) > 0, "a worker that takes pods", "none")); err != nil {
		return err
	}
	node := workers[0]
	for _, args := range [][]string{
		{"adm", "taint", "nodes", node, groupKey + "=" + groupName + ":NoSchedule"},
		{"label", "node", node, groupKey + "=" + groupName},
	} {
		if _, err := t.windlass(ctx, args...); err != nil {
			return err
		}
	}
	if err := t.apply(ctx, "admission.yaml"); err != nil {
		return err
	}
	p, address, cert, err := t.startAdmission(ctx, at)
	if err != nil {
		return err
	}
	defer p.end()
	if err := t.allowed(ctx, "https://"+address,
		func() error { return t.reviewed(ctx, p, node, address, cert) }); err != nil {
		return fmt.Errorf("%w\nadmission.py said:\n%s", err, p.said())
	}
	t.paragraph(
		`The program is called before a pod is stored. It adds the toleration and the node selector to the pods of one namespace, and refuses the toleration in the other; ` +
			`without an answer no pod is created in either. Only addresses that an administrator allowed are called.`)
	for _, args := range [][]string{
		{"adm", "taint", "nodes", node, groupKey + ":NoSchedule-"},
		{"label", "node", node, groupKey + "-"},
	} {
		if _, err := t.windlass(ctx, args...); err != nil {
			return err
		}
	}
	return t.remove(ctx, "admission.yaml")
}

// allowed does something while the cluster allows webhooks at an address, and restores the setting as it was.
func (t *tour) allowed(ctx context.Context, url string, do func() error) error {
	before, err := t.settings(webhookSetting + "=")
	if err != nil {
		return err
	}
	if _, err := t.windlass(ctx, setting(append(before, webhookSetting+"="+url))...); err != nil {
		return err
	}
	done := do()
	restore := []string{"up", "--unset", webhookSetting}
	if len(before) > 0 {
		restore = setting(before)
	}
	// Also after an error or an interruption: nothing else removes the setting.
	calm, cancel := context.WithTimeout(context.WithoutCancel(ctx), settled)
	defer cancel()
	if _, err := t.windlass(calm, restore...); done != nil || err != nil {
		return errors.Join(done, err)
	}
	after, err := t.settings(webhookSetting + "=")
	if err != nil {
		return err
	}
	return t.check(expect(strings.Join(after, " ") == strings.Join(before, " "), fmt.Sprintf("the setting as before: %q",
		before), "%q", after))
}

func setting(values []string) []string {
	args := []string{"up"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// settings returns those of the cluster's settings that begin with some words.
func (t *tour) settings(prefix string) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(t.cluster.dir, "cluster.json"))
	if err != nil {
		return nil, err
	}
	var c struct{ ProgramFlags []string }
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	var out []string
	for _, s := range c.ProgramFlags {
		if strings.HasPrefix(s, prefix) {
			out = append(out, s)
		}
	}
	return out, nil
}

// reviewed configures the webhooks, and checks how pods are treated with and without an answer.
func (t *tour) reviewed(ctx context.Context, p *program, node, address string, cert []byte) error {
	raw, err := documents.ReadFile("documents/webhooks.yaml")
	if err != nil {
		return err
	}
	path := filepath.Join(t.dir, "webhooks.yaml")
	text := strings.NewReplacer("192.0.2.7:8443", address, "Q0VSVElGSUNBVEU=",
		base64.StdEncoding.EncodeToString(cert)).Replace(string(raw))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "apply", "-f", path); err != nil {
		return err
	}
	if err := t.apply(ctx, "admitted.yaml"); err != nil {
		return err
	}
	var pod *schedulingv1.Pod
	err = within(ctx, placed, "plain ready", func(ctx context.Context) (bool, string, error) {
		pod, err = t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: groupName, Name: "plain"}, patient)
		return serves(pod), fmt.Sprint(pod.GetStatus()), err
	})
	if err != nil {
		return err
	}
	t.saw("plain runs on %s: it got the node selector %v", pod.GetSpec().GetNodeName(), pod.GetSpec().GetNodeSelector())
	tolerates := false
	for _, tol := range pod.GetSpec().GetTolerations() {
		tolerates = tolerates || tol.GetKey() == groupKey && tol.GetValue() == groupName
	}
	if err := t.check(
		expect(pod.GetSpec().GetNodeName() == node, "plain on "+node, "on %s", pod.GetSpec().GetNodeName()),
		expect(tolerates, "a toleration of "+groupKey+"="+groupName, "%v", pod.GetSpec().GetTolerations()),
		expect(pod.GetSpec().GetNodeSelector()[groupKey] == groupName, "the node selector of the group", "%v",
			pod.GetSpec().GetNodeSelector())); err != nil {
		return err
	}
	if err := t.refused(ctx, "refused.yaml", "guard.tour.windlass.dev", "the nodes of "+groupName+
		" are for its own namespaces"); err != nil {
		return err
	}
	p.end()
	if err := t.remove(ctx, "admitted.yaml"); err != nil {
		return err
	}
	t.command("kill PID   # "+python+" admission.py", 0, "")
	if err := t.refused(ctx, "admitted.yaml", "tolerate.tour.windlass.dev"); err != nil {
		return err
	}
	return t.remove(ctx, "webhooks.yaml")
}

// refused checks that a document is refused, with some words.
func (t *tour) refused(ctx context.Context, name string, words ...string) error {
	path, err := t.document(name)
	if err != nil {
		return err
	}
	began := time.Now()
	args := []string{"create", "-f", path}
	out, err := t.shell.output(ctx, "windlass", args...)
	if err == nil {
		return t.check(expect(false, t.shell.line("windlass", args...)+" refused", "%s", out))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.command(t.shell.line("windlass", args...), time.Since(began), out)
	_, why, _ := strings.Cut(err.Error(), " error: ")
	t.saw("refused: %s", wrap(why, 90))
	return t.check(mentions(t.shell.line("windlass", args...), err.Error(), words...))
}

// startAdmission runs the example at an address of this host, with a certificate of its own, and returns the port.
func (t *tour) startAdmission(ctx context.Context, at netip.Addr) (p *program, address string, cert []byte, err error) {
	certFile, keyFile := filepath.Join(t.dir, "admission.crt"), filepath.Join(t.dir, "admission.key")
	if cert, err = ownCertificate(at, certFile, keyFile); err != nil {
		return nil, "", nil, err
	}
	args := []string{
		filepath.Join(examplesDir, "admission", "admission.py"), "--listen", netip.AddrPortFrom(at, 0).String(),
		"--certificate", certFile, "--key", keyFile, "--group", groupName,
	}
	t.command(t.shell.line(python, args...)+" &", 0, "")
	if p, err = t.start(ctx, python, args...); err != nil {
		return nil, "", nil, err
	}
	err = within(ctx, answers, "admission.py listening", func(context.Context) (bool, string, error) {
		_, rest, ok := strings.Cut(p.said(), "listening at ")
		address, _, ok2 := strings.Cut(rest, "\n")
		return ok && ok2 && address != "", p.said(), nil
	})
	if err != nil {
		p.end()
		return nil, "", nil, err
	}
	_, rest, _ := strings.Cut(p.said(), "listening at ")
	address, _, _ = strings.Cut(rest, "\n")
	return p, address, cert, nil
}

// hostAddress returns an address of this host that a webhook may have.
func hostAddress() (netip.Addr, bool) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && reach.Allowed(p.Addr()) == nil {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// ownCertificate writes a certificate for an address that its own key signed, and the key, and returns the certificate.
func ownCertificate(at netip.Addr, certFile, keyFile string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{at.AsSlice()}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return nil, err
	}
	return cert, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), 0o600)
}
