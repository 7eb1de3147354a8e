package large

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func TestOnlyPlanMethodsMayHaveLargeRequests(t *testing.T) {
	for method, want := range map[string]bool{
		schedulingv1.PodService_ExplainPod_FullMethodName:         true,
		schedulingv1.EvictionService_PlanEvictions_FullMethodName: true,
		nodev1.NodeService_PlanZones_FullMethodName:               true,
		schedulingv1.PodService_CreatePod_FullMethodName:          false,
		schedulingv1.PodService_BatchCreatePods_FullMethodName:    false,
		schedulingv1.PodService_ExecPod_FullMethodName:            false,
		"/windlass.node.v1.NodeService/None":                      false,
		"/windlass.node.v1.Node":                                  false,
		"":                                                        false,
	} {
		if got := Method(method); got != want {
			t.Errorf("Method(%q) = %v", method, got)
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				m := f.Services().Get(i).Methods().Get(j)
				a, _ := proto.GetExtension(m.Options(), metav1.E_Access).(*metav1.Access)
				if Plans(m) && (a.GetMutating() || a.GetUnauthenticated()) {
					t.Errorf("%s may have large requests", m.FullName())
				}
			}
		}
		return true
	})
}

func TestCostBoundsWhatFewBytesBecome(t *testing.T) {
	d := (&schedulingv1.ExplainPodRequest{}).ProtoReflect().Descriptor()
	empty := &schedulingv1.ExplainPodRequest{Pods: &schedulingv1.PodList{}}
	for range 1000 {
		empty.Pods.Items = append(empty.Pods.Items, &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{},
			Spec:     &schedulingv1.PodSpec{},
		})
	}
	data, err := proto.Marshal(empty)
	if err != nil {
		t.Fatal(err)
	}
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if err := proto.Unmarshal(data, &schedulingv1.ExplainPodRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if got := Cost(d, data); int64(got) < allocated || int64(got) > 8*allocated {
		t.Errorf("1,000 empty pods of %d bytes cost %d, allocated are %d", len(data), got, allocated)
	}
	text := strings.Repeat("x", 1<<20)
	data, err = proto.Marshal(&schedulingv1.ExplainPodRequest{Name: text})
	if err != nil {
		t.Fatal(err)
	}
	if got := Cost(d, data); got < len(text) || got > 2*len(text) {
		t.Errorf("a text of %d bytes costs %d", len(text), got)
	}
	for _, broken := range [][]byte{{0xff}, {0x0a, 0xff}, {0x0a, 0x05, 1}, []byte(strings.Repeat("\x1a\x02", 100))} {
		if got := Cost(d, broken); got > 1<<20 {
			t.Errorf("%x costs %d", broken, got)
		}
	}
}

func TestCostOfJSONCountsObjectsAndNotTexts(t *testing.T) {
	few, many := []byte(`["{{{{,,,,\"[[[["]`), []byte(`[[],[],[],[],[],[]]`)
	if CostOfJSON(few) >= CostOfJSON(many) {
		t.Errorf("%s costs %d, %s costs %d", few, CostOfJSON(few), many, CostOfJSON(many))
	}
}

// A few bytes of JSON must not become much more memory than was counted for them, whatever they say.
func TestCostOfJSONBoundsWhatFewBytesBecome(t *testing.T) {
	const n = 20_000
	for name, tt := range map[string]struct{ begin, one, end string }{
		"numbers in free form": {`{"policy":{"extenders":[{"a":[`, `1`, `]}]}}`},
		"texts in free form":   {`{"policy":{"extenders":[{"a":[`, `""`, `]}]}}`},
		"members in free form": {`{"policy":{"extenders":[{"a":{`, `"%d":1`, `}}]}}`},
		"objects in free form": {`{"policy":{"extenders":[`, `{"":1}`, `]}}`},
		"labels":               {`{"pod":{"metadata":{"labels":{`, `"%d":""`, `}}}}`},
		"containers":           {`{"pod":{"spec":{"containers":[`, `{}`, `]}}}`},
		"pods":                 {`{"pods":{"items":[`, `{"spec":{},"status":{}}`, `]}}`},
		"nodes":                {`{"nodes":{"items":[`, `{"status":{}}`, `]}}`},
		"words":                {`{"withoutNodes":[`, ` "" `, `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			parts := make([]string, n)
			for i := range parts {
				parts[i] = strings.ReplaceAll(tt.one, "%d", strconv.Itoa(i))
			}
			data := []byte(tt.begin + strings.Join(parts, ",") + tt.end)
			m := &schedulingv1.ExplainPodRequest{}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			err := manifest.DecodeUpTo(data, m, MaxMessage)
			runtime.GC()
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			took := int(after.HeapAlloc) - int(before.HeapAlloc) + len(data) + 2*proto.Size(m)
			if got := CostOfJSON(data); took > 2*got || took < got/8 {
				t.Errorf("%d bytes take %d, and count as %d", len(data), took, got)
			}
			runtime.KeepAlive(m)
		})
	}
}

func TestExpanded(t *testing.T) {
	for _, parts := range [][]string{
		{"abc\x0a\x00\x00\x00"},
		{"abc\x0a\x00", "\x00", "\x00"},
		{"", "abc", "\x0a\x00\x00\x00", ""},
	} {
		var data mem.BufferSlice
		for _, p := range parts {
			data = append(data, mem.SliceBuffer(p))
		}
		if got := expanded(data); got != 10 {
			t.Errorf("%q: %d", parts, got)
		}
	}
	if got := expanded(mem.BufferSlice{mem.SliceBuffer("abc")}); got != 0 {
		t.Errorf("too short: %d", got)
	}
}

func TestBudget(t *testing.T) {
	b, ctx := NewBudget(10), t.Context()
	var followed []int
	b.Follow(func(used int) { followed = append(followed, used) })
	if _, err := b.Take(ctx, 11); err == nil {
		t.Error("more than all was taken")
	}
	first, err := b.Take(ctx, 6)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Grow(8); err != nil {
		t.Error(err)
	}
	if err := first.Grow(7); err != nil {
		t.Errorf("a share that is larger already: %v", err)
	}
	if err := first.Grow(11); err == nil {
		t.Error("a share grew beyond all")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Take(gone, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait gets %v", err)
	}
	// Who waits gets it in turn, also after a caller that gave up.
	second := make(chan *Share)
	go func() {
		s, err := b.Take(ctx, 3)
		if err != nil {
			t.Error(err)
		}
		second <- s
	}()
	first.Release()
	first.Release()
	s := <-second
	if b.Used() != 3 {
		t.Errorf("used are %d", b.Used())
	}
	s.Release()
	(*Share)(nil).Release()
	if b.Used() != 0 || followed[len(followed)-1] != 0 {
		t.Errorf("used are %d, reported %v", b.Used(), followed)
	}
}

// A request that would fit alone is to be sent again; one that never fits is not.
func TestARefusedShareSaysWhetherToTryAgain(t *testing.T) {
	b, ctx := NewBudget(10<<20), t.Context()
	share, err := b.Take(ctx, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(ctx, 4<<20); err != nil {
		t.Fatal(err)
	}
	for n, again := range map[int]bool{8 << 20: true, 11 << 20: false} {
		err := share.Grow(n)
		has := slices.ContainsFunc(status.Convert(err).Details(), func(d any) bool {
			_, is := d.(*errdetails.RetryInfo)
			return is
		})
		if err == nil || has != again || strings.Contains(err.Error(), "MiB") == again {
			t.Errorf("%d bytes: %v, to be tried again: %v", n, err, has)
		}
	}
}
