package service

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// largeExplain returns a request with a cluster; every object has some bytes beside what decides.
func largeExplain(nodes, pods, filler int) *schedulingv1.ExplainPodRequest {
	text := func(i int) map[string]string {
		return map[string]string{"filler": strings.Repeat(fmt.Sprint(i%10), filler)}
	}
	r := &schedulingv1.ExplainPodRequest{
		Pod: &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: "asked", Namespace: "default"}, Spec: &schedulingv1.PodSpec{
			Containers: []*schedulingv1.Container{{Name: "c", Image: "i"}},
		}},
		Nodes: &nodev1.NodeList{}, Pods: &schedulingv1.PodList{},
	}
	room := map[string]*structpb.Value{
		"cpu": structpb.NewStringValue("8"), "memory": structpb.NewStringValue("16Gi"),
		"pods": structpb.NewStringValue("110"),
	}
	for i := range nodes {
		r.Nodes.Items = append(r.Nodes.Items, &nodev1.Node{
			Metadata: &metav1.ObjectMeta{
				Name: fmt.Sprint("n-", i), Annotations: text(i),
				Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprint("n-", i)},
			},
			Status: &nodev1.NodeStatus{
				Capacity: room, Allocatable: room, Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
			},
		})
	}
	for i := range pods {
		r.Pods.Items = append(r.Pods.Items, &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("p-", i), Namespace: "default", Annotations: text(i)},
			Spec: &schedulingv1.PodSpec{
				NodeName: fmt.Sprint("n-", i%max(nodes, 1)), Containers: []*schedulingv1.Container{{Name: "c", Image: "i"}},
			},
		})
	}
	return r
}

// encoded sends messages that are encoded already, and ignores the answer.
type encoded struct{}

func (encoded) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (encoded) Unmarshal(_ []byte, _ any) error { return nil }
func (encoded) Name() string                    { return "proto" }

// A cluster of the largest size is explained, and other methods do not take that much.
func TestALargeClusterIsExplained(t *testing.T) {
	c := start(t)
	request := largeExplain(10_000, 20_000, 1700)
	if n := proto.Size(request); n < 50<<20 || n > 64<<20 {
		t.Fatalf("the request has %d bytes", n)
	}
	pods := schedulingv1.NewPodServiceClient(c.admin())
	for name, r := range map[string]*schedulingv1.ExplainPodRequest{"large": request, "small": largeExplain(1, 1, 0)} {
		_, err := schedulingv1.NewPodServiceClient(c.as(servetest.Node("a"))).ExplainPod(t.Context(), r,
			grpc.MaxCallSendMsgSize(64<<20))
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a %s one without the right to it: %v", name, err)
		}
	}
	options := []grpc.CallOption{grpc.MaxCallSendMsgSize(64 << 20)}
	for _, compressed := range []bool{false, true} {
		if compressed {
			options = append(options, grpc.UseCompressor(gzip.Name))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		begun := time.Now()
		r, err := pods.ExplainPod(ctx, request, options...)
		cancel()
		if err != nil || len(r.GetNodes()) != 10_000 || r.GetBest() == "" {
			t.Fatalf("compressed %v: %d nodes, %v", compressed, len(r.GetNodes()), err)
		}
		if os.Getenv("WINDLASS_FIGURES") != "" {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			t.Logf("compressed %v: %d MiB in %v; the process has %d MiB of the system", compressed, proto.Size(request)>>20,
				time.Since(begun).Round(time.Millisecond), m.Sys>>20)
		}
	}
	big := &schedulingv1.CreatePodRequest{Pod: request.GetPods().GetItems()[0]}
	big.Pod.Metadata.Annotations["filler"] = strings.Repeat("x", 17<<20)
	if _, err := pods.CreatePod(t.Context(), big, options...); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a pod of 17 MiB: %v", err)
	}
	// Few bytes that become many objects; the client does not make these.
	item, err := proto.Marshal(&schedulingv1.PodList{Items: []*schedulingv1.Pod{{Spec: &schedulingv1.PodSpec{}}}})
	if err != nil {
		t.Fatal(err)
	}
	number := request.ProtoReflect().Descriptor().Fields().ByName("pods").Number()
	many := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Repeat(item, 3<<20))
	if err := c.admin().Invoke(t.Context(), schedulingv1.PodService_ExplainPod_FullMethodName, many, nil,
		append(options, grpc.ForceCodec(encoded{}))...); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("millions of empty pods: %v", err)
	}
	// A caller who gives up early gets that, and the next one an answer.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := pods.ExplainPod(ctx, request, options...); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("with a deadline of 0.3 s: %v", err)
	}
	if _, err := pods.ExplainPod(t.Context(), largeExplain(3, 3, 0)); err != nil {
		t.Errorf("a small one: %v", err)
	}
}
