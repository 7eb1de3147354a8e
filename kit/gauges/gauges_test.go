package gauges_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/gauges"
)

func TestASampleIsSentOnce(t *testing.T) {
	d := prometheus.NewDesc("lit", "Lamps.", []string{"room", "lamp"}, nil)
	c := gauges.New(func(send gauges.Send) {
		send(d, gauges.Bool(true), "hall", "a")
		send(d, gauges.Bool(false), "hall", "a")
		send(d, gauges.Bool(false), "hal", "la")
		send(d, gauges.Seconds(&timestamppb.Timestamp{Seconds: 7, Nanos: 5}), "hall", "b")
		send(d, gauges.Seconds(nil), "hall", "c")
	}, d)
	want := `# HELP lit Lamps.
# TYPE lit gauge
lit{lamp="a",room="hall"} 1
lit{lamp="b",room="hall"} 7
lit{lamp="c",room="hall"} 0
lit{lamp="la",room="hal"} 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
