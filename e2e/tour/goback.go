package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// more is an object that only a later release brings.
const more = `apiVersion: v1
kind: ConfigMap
metadata:
  name: beacon-more
  namespace: windlass-beacon
  annotations:
    include.release.openshift.io/self-managed-high-availability: "true"
data:
  more: "yes"
`

// goBack updates the cluster to a release that brings more, and goes back: what it brought goes with it, what people
// set stays, and what they change of the release itself is put back.
func (u *upgrade) goBack(ctx context.Context, _ *updatev1.ClusterVersion) error {
	from, err := u.withMore()
	if err != nil {
		return err
	}
	image, err := u.buildRelease(ctx, from, u.later, u.next, u.releases("images"), u.releases("signing-key.asc"),
		u.releases("signatures"), u.created)
	if err != nil {
		return err
	}
	if _, err := u.patchBeacon(ctx, `{"metadata":{"annotations":{"example.com/owner":"people"}}}`); err != nil {
		return err
	}
	if err := u.to(ctx, image, u.later); err != nil {
		return err
	}
	there, err := u.brought(ctx)
	if err != nil {
		return err
	}
	if err := u.to(ctx, u.image, u.next); err != nil {
		return err
	}
	left, err := u.brought(ctx)
	if err != nil {
		return err
	}
	owner, err := u.beacon(ctx, `{.metadata.annotations.example\.com/owner}`)
	if err != nil {
		return err
	}
	if err := u.check(
		expect(there == "configmap/beacon-more, label more, env MORE RELEASE", "an object, a label and a variable that "+
			u.later+" brought", "%s", there),
		expect(left == "env RELEASE", "none of them at "+u.next+" again", "%s", left),
		expect(owner == "people", "the annotation that people set", "%q", owner),
	); err != nil {
		return err
	}
	changed, err := u.patchBeacon(ctx, `{"spec":{"replicas":7}}`, "-o", "jsonpath={.metadata.generation} {.spec.replicas}")
	if err != nil {
		return err
	}
	if err := within(ctx, answers, "the replicas of the release", func(ctx context.Context) (bool, string, error) {
		now, err := u.beacon(ctx, `{.metadata.generation} {.spec.replicas}`)
		return strings.HasSuffix(now, " 2") && strings.HasSuffix(changed, " 7") && now != changed, changed + ", then " + now,
			err
	}); err != nil {
		return err
	}
	_, err = u.patchBeacon(ctx, `{"metadata":{"annotations":{"example.com/owner":null}}}`)
	return err
}

// withSameNodes writes the manifests of a release whose machine configurations are those of the release before, so that
// no node changes, and returns their directory.
func (u *upgrade) withSameNodes(version string) (string, error) {
	same, err := u.manifestsOf(u.next)
	if err != nil {
		return "", err
	}
	to, err := u.manifestsOf(version)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"0000_80_machine-config_00_worker.yaml", "0000_80_machine-config_01_master.yaml"} {
		raw, err := os.ReadFile(filepath.Join(same, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o600); err != nil {
			return "", err
		}
	}
	return to, nil
}

// withMore writes the manifests of the later release, and returns their directory.
func (u *upgrade) withMore() (string, error) {
	to, err := u.withSameNodes(u.later)
	if err != nil {
		return "", err
	}
	deployment := filepath.Join(to, "0000_50_beacon_00_deployment.yaml")
	raw, err := os.ReadFile(deployment)
	if err != nil {
		return "", err
	}
	text := string(raw)
	for old, changed := range map[string]string{
		"  name: beacon\n":               "  name: beacon\n  labels: {more: \"yes\"}\n",
		"            - {name: RELEASE, ": "            - {name: MORE, value: \"yes\"}\n            - {name: RELEASE, ",
	} {
		if strings.Count(text, old) != 1 {
			return "", fmt.Errorf("%s: no single line %q", deployment, old)
		}
		text = strings.Replace(text, old, changed, 1)
	}
	if err := os.WriteFile(deployment, []byte(text), 0o600); err != nil {
		return "", err
	}
	return to, os.WriteFile(filepath.Join(to, "0000_50_beacon_01_more.yaml"), []byte(more), 0o600)
}

// to updates the cluster to an image, and waits until that is completed.
func (u *upgrade) to(ctx context.Context, image, version string) error {
	if _, err := u.windlass(ctx, "adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade"); err != nil {
		return err
	}
	return within(ctx, updated, "the update to "+version+" completed", func(ctx context.Context) (bool, string, error) {
		cv, err := u.cluster.version(ctx)
		h := cv.GetStatus().GetHistory()
		return len(h) > 0 && h[0].GetVersion() == version && h[0].GetState() == "Completed",
			fmt.Sprintf("%s\n%s", cv.GetStatus(), u.operators.said()), err
	})
}

// brought returns what there is of what only the later release brings, and all variables of the beacon.
func (u *upgrade) brought(ctx context.Context) (string, error) {
	object, err := u.windlass(ctx, "get", "configmap", "beacon-more", "-n", "windlass-beacon", "--ignore-not-found", "-o",
		"name")
	if err != nil {
		return "", err
	}
	label, err := u.beacon(ctx, "{.metadata.labels.more}")
	if err != nil {
		return "", err
	}
	names, err := u.beacon(ctx, "{.spec.template.spec.containers[0].env[*].name}")
	if err != nil {
		return "", err
	}
	words := []string{}
	if object = strings.TrimSpace(object); object != "" {
		words = append(words, object)
	}
	if label != "" {
		words = append(words, "label more")
	}
	variables := strings.Fields(names)
	return strings.Join(append(words, "env "+strings.Join(variables, " ")), ", "), nil
}

func (u *upgrade) beacon(ctx context.Context, path string) (string, error) {
	out, err := u.shell.output(ctx, "windlass", "get", "deployment", "beacon", "-n", "windlass-beacon", "-o",
		"jsonpath="+path)
	return strings.TrimSpace(out), err
}

func (u *upgrade) patchBeacon(ctx context.Context, patch string, more ...string) (string, error) {
	args := []string{"patch", "deployment", "beacon", "-n", "windlass-beacon", "--type=merge", "-p", patch}
	out, err := u.windlass(ctx, append(args, more...)...)
	return strings.TrimSpace(out), err
}
