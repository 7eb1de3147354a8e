package etcdtest_test

import (
	"os"
	"testing"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestStoresOfOneServerDoNotSeeEachOther(t *testing.T) {
	first, second := etcdtest.Store(t), etcdtest.Store(t)
	if _, err := first.Commit(t.Context(), store.Put("key", []byte("value"), 0)); err != nil {
		t.Fatal(err)
	}
	page, err := second.List(t.Context(), "", store.ListOptions{})
	if err != nil || len(page.Records) != 0 {
		t.Errorf("List = %v, %v, want nothing", page.Records, err)
	}
}
