package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// beaconNamespace has the beacon, an operator of the example releases.
const beaconNamespace = "windlass-beacon"

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

// trial is the file of an object that a later release drops.
const trial = "0000_25_beacon_02_trial.yaml"

// dropAndGoBack updates the cluster to a release that drops some of what the release before brought, and brings more;
// then it goes back. What a release lacks is removed, what people set stays, and what they change of the release itself
// is put back.
func (u *upgrade) dropAndGoBack(ctx context.Context, _ *updatev1.ClusterVersion) error {
	_, err := u.patchBeacon(ctx,
		`{"metadata":{"annotations":{"example.com/owner":"people"},"labels":{"team":"lights"}}}`)
	if err != nil {
		return err
	}
	before, err := u.brought(ctx)
	if err != nil {
		return err
	}
	if err := u.check(expect(before == atNext, "an object, a label and a variable that "+u.next+" brought", "%s",
		before)); err != nil {
		return err
	}
	if err := u.drop(ctx); err != nil {
		return err
	}
	if err := u.to(ctx, u.image, u.next); err != nil {
		return err
	}
	back, err := u.brought(ctx)
	if err != nil {
		return err
	}
	if err := u.check(expect(back == before, "at "+u.next+" again nothing that "+u.later+" brought, all that it dropped, "+
		"and what people set: "+before, "%s", back)); err != nil {
		return err
	}
	if err := u.putBack(ctx); err != nil {
		return err
	}
	_, err = u.patchBeacon(ctx, `{"metadata":{"annotations":{"example.com/owner":null},"labels":{"team":null}}}`)
	return err
}

// What there is of the beacon at the two releases.
const (
	atNext  = "configmap/beacon-settings configmap/beacon-trial, labels team trial, env RELEASE TRIAL, owner people"
	atLater = "configmap/beacon-more configmap/beacon-settings, labels more team, env MORE RELEASE, owner people"
)

// drop updates the cluster to the later release, which drops the trial.
func (u *upgrade) drop(ctx context.Context) error {
	from, err := u.withMore()
	if err != nil {
		return err
	}
	plan, err := u.windlass(ctx, "plan", "release", "--from-dir", from, "--version", u.later, "--removals")
	if err != nil {
		return err
	}
	_, removals, _ := strings.Cut(plan, "Objects that the release lacks:")
	u.saw("Objects that the release lacks:%s", removals)
	image, err := u.buildRelease(ctx, from, u.later, u.next, u.releases("images"), u.releases("signing-key.asc"),
		u.releases("signatures"), u.created)
	if err != nil {
		return err
	}
	if err := u.to(ctx, image, u.later); err != nil {
		return err
	}
	gone, err := u.fails(ctx, "get", "configmap", "beacon-trial", "-n", beaconNamespace)
	if err != nil {
		return err
	}
	u.saw("%s", gone)
	there, err := u.brought(ctx)
	if err != nil {
		return err
	}
	return u.check(
		mentions("windlass plan release --removals", removals, "configmap/beacon-trial", "removed"),
		mentions("windlass get configmap beacon-trial", gone, "NotFound", `"beacon-trial" not found`),
		expect(there == atLater, "without the object, the label and the variable that "+u.later+" drops, with those that it "+
			"brings, and with what people set: "+atLater, "%s", there))
}

// putBack changes what the release has set, and waits until that is put back.
func (u *upgrade) putBack(ctx context.Context) error {
	changed, err := u.patchBeacon(ctx, `{"spec":{"replicas":7}}`, "-o", "jsonpath={.metadata.generation} {.spec.replicas}")
	if err != nil {
		return err
	}
	return within(ctx, answers, "the replicas of the release", func(ctx context.Context) (bool, string, error) {
		now, err := u.shell.output(ctx, "windlass", "get", "deployment", "beacon", "-n", beaconNamespace, "-o",
			"jsonpath={.metadata.generation} {.spec.replicas}")
		now = strings.TrimSpace(now)
		return strings.HasSuffix(now, " 2") && strings.HasSuffix(changed, " 7") && now != changed, changed + ", then " + now,
			err
	})
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

// withMore writes the manifests of the later release, which lacks the trial and brings more, and returns their
// directory.
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
		"  labels: {trial: \"yes\"}\n":                  "  labels: {more: \"yes\"}\n",
		"            - {name: TRIAL, value: \"yes\"}\n": "            - {name: MORE, value: \"yes\"}\n",
	} {
		if strings.Count(text, old) != 1 {
			return "", fmt.Errorf("%s: no single line %q", deployment, old)
		}
		text = strings.Replace(text, old, changed, 1)
	}
	if err := os.WriteFile(deployment, []byte(text), 0o600); err != nil {
		return "", err
	}
	if err := os.Remove(filepath.Join(to, trial)); err != nil {
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

// brought returns what there is of the beacon: the names of its objects, labels and variables, and its owner.
func (u *upgrade) brought(ctx context.Context) (string, error) {
	objects, err := u.windlass(ctx, "get", "configmaps", "-n", beaconNamespace, "-o", "name")
	if err != nil {
		return "", err
	}
	out, err := u.shell.output(ctx, "windlass", "get", "deployment", "beacon", "-n", beaconNamespace, "-o", "json")
	if err != nil {
		return "", err
	}
	var beacon schedulingv1.Deployment
	if err := protojson.Unmarshal([]byte(out), &beacon); err != nil {
		return "", fmt.Errorf("deployment beacon: %w", err)
	}
	var variables []string
	for _, c := range beacon.GetSpec().GetTemplate().GetSpec().GetContainers() {
		for _, v := range c.GetEnv() {
			variables = append(variables, v.GetName())
		}
	}
	slices.Sort(variables)
	there := fmt.Sprintf("%s, labels %s, env %s, owner %s", strings.Join(strings.Fields(objects), " "),
		strings.Join(sortedKeys(beacon.GetMetadata().GetLabels()), " "), strings.Join(variables, " "),
		beacon.GetMetadata().GetAnnotations()["example.com/owner"])
	u.saw("%s", there)
	return there, nil
}

func (u *upgrade) patchBeacon(ctx context.Context, patch string, more ...string) (string, error) {
	args := []string{"patch", "deployment", "beacon", "-n", beaconNamespace, "--type=merge", "-p", patch}
	out, err := u.windlass(ctx, append(args, more...)...)
	return strings.TrimSpace(out), err
}
