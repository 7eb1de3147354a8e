package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Versions of the example releases.
const (
	firstVersion   = "1.0.0" // that a cluster begins with
	exampleVersion = "1.1.0" // of the manifests that releases are made of
)

// versions are those that an update of the tour is about.
type versions struct {
	now, next     string
	later         string // that brings more than next
	broken, self  string // that bring Windlass itself: one that does not come up, and one that does
	risky, unsure string // with a risk that is certain, and with one that cannot be judged
	judged        string // with a risk that the cluster's own metrics decide
}

// versionsAfter returns the versions for a cluster at a version, which is three numbers: the next one is the example's,
// or else the one after now.
func versionsAfter(now string) (versions, error) {
	var major, minor, patch int
	if n, err := fmt.Sscanf(now, "%d.%d.%d", &major, &minor, &patch); n != 3 || err != nil {
		return versions{}, mismatch{{expected: "a cluster whose version is three numbers", seen: now}}
	}
	v := versions{now: now, next: fmt.Sprintf("%d.%d.%d", major, minor, patch+1)}
	if major == 1 && minor == 0 {
		minor, v.next = 1, exampleVersion
	}
	if _, err := fmt.Sscanf(v.next, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return versions{}, err
	}
	// It comes before the next one of a tour that is repeated.
	v.later = fmt.Sprintf("%d.%d.%d-tour", major, minor, patch+1)
	v.broken, v.self = v.later+".1", v.later+".2"
	v.risky, v.unsure = fmt.Sprintf("%d.%d.0", major, minor+1), fmt.Sprintf("%d.%d.0", major, minor+2)
	v.judged = fmt.Sprintf("%d.%d.0", major, minor+3)
	return v, nil
}

// bornInVersion1 is true of clusters whose first version was 1.x, as rules of public graphs ask it.
const bornInVersion1 = `group(cluster_version{type="initial",version=~"1[.].*"}) or 0 * group(cluster_version)`

// manifestsOf writes the manifests of the example as those of another version, and returns their directory.
func (t *tour) manifestsOf(version string) (string, error) {
	to := filepath.Join(t.dir, "manifests", version)
	list, err := os.ReadDir(t.example)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: start the tour where the repository is, or say --manifests DIRECTORY", err)
	}
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return "", err
	}
	for _, f := range list {
		raw, err := os.ReadFile(filepath.Join(t.example, f.Name()))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), []byte(strings.ReplaceAll(string(raw), exampleVersion, version)),
			0o600); err != nil {
			return "", err
		}
	}
	return to, nil
}

// newRelease makes a release image of the example's manifests and returns its name. key and signatures may be empty:
// then it is not signed.
func (t *tour) newRelease(ctx context.Context, version, previous, to, key, signatures string, created time.Time) (
	string, error,
) {
	from, err := t.manifestsOf(version)
	if err != nil {
		return "", err
	}
	return t.buildRelease(ctx, from, version, previous, to, key, signatures, created)
}

// buildRelease is newRelease of the manifests in a directory, with more flags.
func (t *tour) buildRelease(ctx context.Context, from, version, previous, to, key, signatures string,
	created time.Time, more ...string,
) (string, error) {
	args := []string{
		"adm", "release", "new", "--from-dir", from, "--version", version, "--previous", previous, "--to", to,
		"--created", created.UTC().Format(time.RFC3339), "-o", "name",
	}
	if key != "" {
		args = append(args, "--signing-key", key, "--signature-store", signatures)
	}
	out, err := t.windlass(ctx, append(args, more...)...)
	return strings.TrimSpace(out), err
}

// releases returns where something of the cluster's own releases is.
func (t *tour) releases(elem ...string) string {
	return filepath.Join(append([]string{t.cluster.dir, "release"}, elem...)...)
}

// graph writes a graph of updates, as an update service answers: one that is recommended, one with a risk for
// everybody, and one with a risk that needs a measurement to be judged. It returns the address of its directory.
func (t *tour) graph(v versions, image, nextImage string) (string, error) {
	type m = map[string]any
	node := func(version, payload string) m {
		return m{
			"version": version, "payload": payload,
			"metadata": m{"io.openshift.upgrades.graph.release.channels": channel},
		}
	}
	other := func(digit int) string { return "windlass/release@sha256:" + strings.Repeat(strconv.Itoa(digit), 64) }
	risk := func(to, name, message string, rule m) m {
		return m{"edges": []m{{"from": v.now, "to": to}}, "risks": []m{{
			"name": name, "message": message, "url": "https://example.com/" + name, "matchingRules": []m{rule},
		}}}
	}
	raw, err := json.MarshalIndent(m{
		"version": 1,
		"nodes": []m{
			node(v.now, image), node(v.next, nextImage), node(v.risky, other(1)), node(v.unsure, other(2)),
			node(v.judged, other(3)),
		},
		"edges": [][2]int{{0, 1}},
		"conditionalEdges": []m{
			risk(v.risky, "LedgerLosesCents", "Rounding is wrong everywhere.", m{"type": "Always"}),
			risk(v.unsure, "BeaconTooSlow", "Beacons are late on slow disks.",
				m{"type": "PromQL", "promql": m{"promql": "max(beacon_lag_seconds) > bool 1"}}),
			risk(v.judged, "ArchiveFormatOfVersion1", "Archives that version 1 began cannot be opened.",
				m{"type": "PromQL", "promql": m{"promql": bornInVersion1}}),
		},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(t.dir, "graph")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return "file://" + dir, os.WriteFile(filepath.Join(dir, channel+".json"), raw, 0o600)
}

// tamper changes one byte of the largest file of an OCI layout: what the image carries.
func tamper(layout string) error {
	dir := filepath.Join(layout, "blobs", "sha256")
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var largest string
	var size int64
	for _, f := range list {
		info, err := f.Info()
		if err != nil {
			return err
		}
		if info.Size() > size {
			largest, size = filepath.Join(dir, f.Name()), info.Size()
		}
	}
	raw, err := os.ReadFile(largest)
	if err != nil {
		return err
	}
	raw[len(raw)/2] ^= 1
	return os.WriteFile(largest, raw, 0o600)
}
