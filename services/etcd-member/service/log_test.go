package service

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// etcd repeats this attempt at once, for as long as it takes to load a snapshot.
func TestEtcdMakesItsMemberKnownWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := etcdLog(config{logLevel: "warn"}, &out)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for time.Since(began) < time.Second {
			if log.Warn("failed to publish local member to cluster through raft"); bytes.Count(out.Bytes(),
				[]byte("\n")) > 1000 {
				t.Fatal("a thousand attempts in less than a second")
			}
		}
		began = time.Now()
		if log.Warn("something else"); time.Since(began) != 0 {
			t.Error("another warning is held up")
		}
	})
}
