package manifest_test

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// largeNode is a node of about 3.5 kB of JSON.
func largeNode() []byte {
	var b bytes.Buffer
	b.WriteString(
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"worker-a-x7k2p","uid":"5f0c","resourceVersion":"12345","creationTimestamp":"2026-01-02T03:04:05Z","labels":{`)
	for i := range 15 {
		fmt.Fprintf(&b, `"node.example.com/label-%d":"value-%d",`, i, i)
	}
	b.WriteString(
		`"last":"x"}},"spec":{"providerID":"local://c/worker-a-x7k2p","taints":[{"key":"a","effect":"NoSchedule"}]},"status":{"capacity":{"cpu":"4","memory":"8Gi","pods":250},"conditions":[`)
	for i := range 12 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b,
			`{"type":"Condition%d","status":"True","reason":"SomeReason","message":"a message of a usual length for people to read","lastTransitionTime":"2026-01-02T03:04:05Z"}`, i)
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}

func BenchmarkDecode(b *testing.B) {
	text := largeNode()
	b.Run("manifest", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := manifest.Decode(text, new(nodev1.Node)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("protojson", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := protojson.Unmarshal(text, new(nodev1.Node)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	m := new(nodev1.Node)
	if err := manifest.Decode(largeNode(), m); err != nil {
		b.Fatal(err)
	}
	b.Run("manifest", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := manifest.Encode(m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("protojson", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := protojson.Marshal(m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	m := new(nodev1.Node)
	if err := manifest.Decode(largeNode(), m); err != nil {
		b.Fatal(err)
	}
	text, err := manifest.YAML(m)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := manifest.Split(bytes.NewReader(text), "file.yaml"); err != nil {
			b.Fatal(err)
		}
	}
}
