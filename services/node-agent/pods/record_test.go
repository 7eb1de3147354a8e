package pods

import (
	"encoding/json"
	"testing"
	"time"
)

func TestARecordOfAnEarlierVersionIsRead(t *testing.T) {
	const text = `{"containers": {"main": {"starts": 2, "pid": 12, "root": "/r", "spec": {"Name": "pod.a.main"},
		"last": {"code": 1, "pid": 11, "started": "2026-11-27T11:00:00Z", "finished": "2026-11-27T11:00:01Z"}}}}`
	p := &pod{}
	if err := json.Unmarshal([]byte(text), &p.record); err != nil {
		t.Fatal(err)
	}
	p.resume(time.Now())
	c := p.record.Containers["main"]
	if c.ID != "process://12" || c.Last.ID != "process://11" || c.Root != "/r" || c.Spec.Name != "pod.a.main" {
		t.Errorf("%+v, last %+v", c, c.Last)
	}
}
