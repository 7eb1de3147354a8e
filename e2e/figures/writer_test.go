package figures

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// writer changes one object over REST as fast as it is acknowledged, each time guarded by the revision that it read.
type writer struct {
	cancel  context.CancelFunc
	done    chan struct{}
	longest time.Duration // between two acknowledgements
	err     error
}

const writerPath = "/v1/namespaces/" + harness.Namespace + "/machinesets"

// startWriter starts a writer; stop ends it and returns its longest gap.
func startWriter(t *testing.T, c *harness.Cluster) *writer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &writer{cancel: cancel, done: make(chan struct{})}
	body := []byte(
		`{"apiVersion":"machine.openshift.io/v1beta1","kind":"MachineSet","metadata":{"name":"written"},"spec":{"replicas":0}}`)
	resp, err := c.Admin().REST(ctx, http.MethodPost, writerPath, "application/json", body)
	if err != nil || (resp.Code != http.StatusOK && resp.Code != http.StatusConflict) {
		t.Fatalf("create the written object: %v, %d %s", err, resp.Code, resp.Body)
	}
	go func() {
		defer close(w.done)
		w.err = w.run(ctx, c.Admin())
	}()
	return w
}

func (w *writer) stop() time.Duration {
	w.cancel()
	<-w.done
	return w.longest
}

func (w *writer) run(ctx context.Context, as *harness.Caller) error {
	revision := ""
	last := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		if revision == "" {
			var err error
			if revision, err = read(ctx, as); err != nil {
				continue // no answer now: ask again
			}
		}
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{"windlass.dev/n":"%d"}}}`, revision, n)
		resp, err := as.REST(ctx, http.MethodPatch, writerPath+"/written", "application/merge-patch+json", []byte(patch))
		revision = ""
		if err != nil || resp.Code != http.StatusOK {
			continue // unknown or refused: read what is there and go on
		}
		now := time.Now()
		w.longest = max(w.longest, now.Sub(last))
		last = now
		if revision, err = revisionOf(resp.Body); err != nil {
			return err
		}
	}
	return nil
}

func read(ctx context.Context, as *harness.Caller) (string, error) {
	resp, err := as.REST(ctx, http.MethodGet, writerPath+"/written", "", nil)
	if err != nil || resp.Code != http.StatusOK {
		return "", fmt.Errorf("read: %v, %d", err, resp.Code)
	}
	return revisionOf(resp.Body)
}

func revisionOf(body []byte) (string, error) {
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	err := json.Unmarshal(body, &o)
	return o.Metadata.ResourceVersion, err
}
