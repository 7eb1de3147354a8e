package lifecycle

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestOfStartsAtOnceOneMakesTheCluster(t *testing.T) {
	pods := t.TempDir()
	if err := os.Chmod(filepath.Dir(pods), 0o711); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WINDLASS_HOME", t.TempDir())
	t.Setenv("WINDLASS_PODS", pods)
	e := &session.Env{Out: io.Discard, Err: io.Discard}
	made := make([]bool, 8)
	opened := make([]*cluster.Cluster, len(made))
	var starts sync.WaitGroup
	for i := range made {
		starts.Go(func() {
			var err error
			if opened[i], made[i], err = openOrCreate(t.Context(), e, upFlags{}); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	makers := 0
	for i, c := range opened {
		if made[i] {
			makers++
		}
		if c == nil || c.Subnet != opened[0].Subnet || c.PodsDir != opened[0].PodsDir {
			t.Errorf("start %d has cluster %+v, the first one %+v", i, c, opened[0])
		}
	}
	if blocks, err := os.ReadDir(pods); makers != 1 || err != nil || len(blocks) > 1 {
		t.Errorf("%d starts made the cluster, %d blocks of users are taken, %v", makers, len(blocks), err)
	}
}
