package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/provider-inventory/metrics"
)

func TestHosts(t *testing.T) {
	c := resource.NewCache[*hostv1.Host]()
	c.Replace([]*hostv1.Host{
		{Metadata: &metav1.ObjectMeta{Name: "new"}},
		{Metadata: &metav1.ObjectMeta{Name: "silent"}, Status: &hostv1.HostStatus{Phase: proto.String("Lost")}},
	}, 1)
	want := `
# HELP windlass_host_phase 1 for the present phase of each host of the inventory.
# TYPE windlass_host_phase gauge
windlass_host_phase{host="silent",phase="Lost"} 1
`
	if err := testutil.CollectAndCompare(metrics.New(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
