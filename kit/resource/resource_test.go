package resource_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const ns = "openshift-machine-api"

type fixture struct {
	table  *resource.Table[*machinev1.MachineSet]
	client machinev1.MachineSetServiceClient
	conn   *grpc.ClientConn
}

// serve starts a table of machine sets and its gRPC service.
func serve(t testing.TB, cfg resource.Config[*machinev1.MachineSet]) fixture {
	t.Helper()
	return serveFrom(t, etcdtest.Store(t), cfg)
}

func serveFrom(t testing.TB, st *store.Store, cfg resource.Config[*machinev1.MachineSet]) fixture {
	t.Helper()
	v, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	table := resource.NewTable(st, v, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx) }()
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			resp, err := h(ctx, req)
			return resp, rpcerr.From(err)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return rpcerr.From(h(srv, ss))
		}))
	if err := resource.Register(srv, &machinev1.MachineSetService_ServiceDesc,
		machinev1.UnimplementedMachineSetServiceServer{}, table); err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	go func() { _ = srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///table", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return fixture{table, machinev1.NewMachineSetServiceClient(conn), conn}
}

func set(name string, replicas int32) *machinev1.MachineSet {
	return &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Name: name}, Spec: &machinev1.MachineSetSpec{
		Replicas: proto.Int32(replicas),
	}}
}

func (f fixture) create(t *testing.T, s *machinev1.MachineSet) *machinev1.MachineSet {
	t.Helper()
	out, err := f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{MachineSet: s})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantReason(t *testing.T, err error, code codes.Code, reason metav1.ErrorReason) {
	t.Helper()
	if status.Code(err) != code || rpcerr.Reason(err) != reason {
		t.Fatalf("error = %v (%v), want %v %v", err, rpcerr.Reason(err), code, reason)
	}
}

func TestCreateMakesWhatOnlyTheServerWrites(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Finalizers: []string{"windlass.dev/test"}})
	in := set("a", 0)
	in.Metadata.Uid, in.Metadata.ResourceVersion = "mine", "17"
	in.Status = &machinev1.MachineSetStatus{Replicas: proto.Int32(9)}
	got := f.create(t, in)
	m := got.GetMetadata()
	if m.GetUid() == "mine" || m.GetUid() == "" || m.GetNamespace() != ns || m.GetGeneration() != 1 ||
		m.GetCreationTimestamp() == nil || got.GetStatus() != nil {
		t.Errorf("created %v", got)
	}
	if got.GetApiVersion() != "machine.openshift.io/v1beta1" || got.GetKind() != "MachineSet" ||
		got.GetSpec().Replicas == nil {
		t.Errorf("created %v", got)
	}
	read, err := f.client.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{Namespace: ns, Name: "a"})
	if err != nil || !proto.Equal(read, got) {
		t.Errorf("read %v, %v; want what was created", read, err)
	}
	_, err = f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{MachineSet: set("a", 1)})
	wantReason(t, err, codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS)
}

func TestBadObjectsAreRefusedWithTheirPathsAndNothingIsStored(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{HasNamespace: func(s string) bool { return s == ns }})
	for _, tc := range []struct {
		name, field string
		set         *machinev1.MachineSet
	}{
		{"a placeholder is no name", "metadata.name", set("<machineset>", 0)},
		{"a name is required", "metadata.name", set("", 0)},
		{"replicas cannot be negative", "spec.replicas", set("a", -1)},
		{"a policy must be known", "spec.deletePolicy", &machinev1.MachineSet{
			Metadata: &metav1.ObjectMeta{Name: "a"},
			Spec:     &machinev1.MachineSetSpec{DeletePolicy: "Never"},
		}},
		{"another kind is refused", "kind", &machinev1.MachineSet{Kind: "Machine", Metadata: &metav1.ObjectMeta{Name: "a"}}},
		{"a label value must be valid", "metadata.labels['x']", &machinev1.MachineSet{
			Metadata: &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "a b"}},
		}},
		{"hooks in the template need owners", "spec.template.spec.lifecycleHooks.preDrain[0].owner", &machinev1.MachineSet{
			Metadata: &metav1.ObjectMeta{Name: "a"}, Spec: &machinev1.MachineSetSpec{
				Template: &machinev1.MachineTemplateSpec{
					Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
						PreDrain: []*machinev1.LifecycleHook{{Name: "MigrateApp"}},
					}},
				},
			},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{MachineSet: tc.set})
			wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
			fields, _ := rpcerr.Fields(err)
			if len(fields) != 1 || fields[0].Path != tc.field {
				t.Errorf("fields = %v, want %s alone", fields, tc.field)
			}
		})
	}
	_, err := f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{
		Namespace:  "elsewhere",
		MachineSet: set("a", 0),
	})
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
	if all, err := f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{}); err != nil ||
		len(all.GetItems()) != 0 {
		t.Errorf("list = %v, %v; want nothing", all, err)
	}
}

func TestDryRunStoresNothing(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	if _, err := f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{
		MachineSet: set("a", 1),
		DryRun:     "All",
	}); err != nil {
		t.Fatal(err)
	}
	_, err := f.client.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{Name: "a"})
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
	f.create(t, set("a", 1))
	_, err = f.client.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{
		MachineSet: set("a", 1),
		DryRun:     "All",
	})
	wantReason(t, err, codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS)
	if _, err := f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{
		Name: "a", DryRun: "All",
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{Name: "a"}); err != nil {
		t.Errorf("after a dry deletion: %v", err)
	}
}

func TestAStaleWriteIsRefused(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	first := f.create(t, set("a", 1))
	second := proto.Clone(first).(*machinev1.MachineSet)
	second.Spec.Replicas = proto.Int32(2)
	second, err := f.client.UpdateMachineSet(t.Context(), &machinev1.UpdateMachineSetRequest{
		Namespace: ns, Name: "a",
		MachineSet: second,
	})
	if err != nil || second.GetMetadata().GetGeneration() != 2 {
		t.Fatalf("update = %v, %v", second, err)
	}
	first.Spec.Replicas = proto.Int32(3)
	_, err = f.client.UpdateMachineSet(t.Context(), &machinev1.UpdateMachineSetRequest{
		Namespace: ns, Name: "a",
		MachineSet: first,
	})
	wantReason(t, err, codes.Aborted, metav1.ErrorReason_ERROR_REASON_CONFLICT)
	_, err = f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{
		Name: "a", Preconditions: &metav1.Preconditions{Uid: "other"},
	})
	wantReason(t, err, codes.Aborted, metav1.ErrorReason_ERROR_REASON_CONFLICT)
	_, err = f.patch(t, "a", "application/merge-patch+json", `{"metadata":{"resourceVersion":"`+
		first.GetMetadata().GetResourceVersion()+`"},"spec":{"replicas":7}}`)
	wantReason(t, err, codes.Aborted, metav1.ErrorReason_ERROR_REASON_CONFLICT)
}

func TestSpecAndStatusDoNotTouchEachOther(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	s := f.create(t, set("a", 1))
	s.Status = &machinev1.MachineSetStatus{Replicas: proto.Int32(0)}
	s.Spec.Replicas = proto.Int32(5)
	got, err := f.client.UpdateMachineSetStatus(t.Context(), &machinev1.UpdateMachineSetStatusRequest{
		Namespace: ns, Name: "a", MachineSet: s,
	})
	if err != nil || got.GetSpec().GetReplicas() != 1 || got.GetStatus().Replicas == nil ||
		got.GetMetadata().GetGeneration() != 1 {
		t.Fatalf("status update = %v, %v", got, err)
	}
	got.Status = nil
	got.Spec.Replicas = proto.Int32(5)
	got, err = f.client.UpdateMachineSet(t.Context(), &machinev1.UpdateMachineSetRequest{
		Namespace: ns, Name: "a",
		MachineSet: got,
	})
	if err != nil || got.GetSpec().GetReplicas() != 5 || got.GetStatus() == nil {
		t.Fatalf("update = %v, %v", got, err)
	}
	same, err := f.client.UpdateMachineSet(t.Context(), &machinev1.UpdateMachineSetRequest{
		Namespace: ns, Name: "a",
		MachineSet: got,
	})
	if err != nil || same.GetMetadata().GetResourceVersion() != got.GetMetadata().GetResourceVersion() {
		t.Errorf("a write that changes nothing = %v, %v; want the same revision", same, err)
	}
}

func (f fixture) patch(t *testing.T, name, contentType, patch string) (*machinev1.MachineSet, error) {
	t.Helper()
	return f.client.PatchMachineSet(t.Context(), &machinev1.PatchMachineSetRequest{
		Namespace: ns, Name: name,
		Patch: &httpbody.HttpBody{ContentType: contentType, Data: []byte(patch)},
	})
}

func TestPatches(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	s := set("a", 1)
	s.Metadata.Labels = map[string]string{"keep": "1", "drop": "1"}
	f.create(t, s)
	got, err := f.patch(t, "a", "application/merge-patch+json",
		`{"metadata":{"labels":{"drop":null,"new":"2"}},"spec":{"replicas":4}}`)
	if err != nil || len(got.GetMetadata().GetLabels()) != 2 || got.GetSpec().GetReplicas() != 4 {
		t.Fatalf("merge patch = %v, %v", got, err)
	}
	got, err = f.patch(t, "a", "application/json-patch+json",
		`[{"op":"test","path":"/spec/replicas","value":4},{"op":"replace","path":"/spec/replicas","value":0}]`)
	if err != nil || got.GetSpec().Replicas == nil || got.GetSpec().GetReplicas() != 0 {
		t.Fatalf("JSON patch = %v, %v", got, err)
	}
	_, err = f.patch(t, "a", "application/json-patch+json", `[{"op":"test","path":"/spec/replicas","value":4}]`)
	wantReason(t, err, codes.FailedPrecondition, metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION)
	_, err = f.patch(t, "a", "application/merge-patch+json", `{"spec":{"replica":4,"template":{"spec":{"taint":[]}}}}`)
	wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
	if fields, _ := rpcerr.Fields(err); len(fields) != 2 {
		t.Errorf("fields = %v, want both unknown ones", fields)
	}
	_, err = f.patch(t, "a", "text/plain", `x`)
	wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
}

func (f fixture) apply(t *testing.T, s *machinev1.MachineSet) *machinev1.MachineSet {
	t.Helper()
	out, err := f.client.ApplyMachineSet(t.Context(), &machinev1.ApplyMachineSetRequest{
		Namespace: ns, Name: "a", MachineSet: s,
	})
	must(t, err)
	return out
}

func TestApplyRemovesWhatWasAppliedBeforeAndKeepsTheRest(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	s := set("a", 3)
	s.Metadata.Labels = map[string]string{"old": "1", "kept": "1"}
	s.Spec.MinReadySeconds = proto.Int32(7)
	f.apply(t, s)
	_, err := f.patch(t, "a", "application/merge-patch+json", `{"metadata":{"labels":{"mine":"1"}},"spec":{"replicas":9}}`)
	must(t, err)
	s = set("a", 0)
	s.Spec.Replicas = nil
	s.Metadata.Labels = map[string]string{"kept": "2"}
	got := f.apply(t, s)
	want := map[string]string{"kept": "2", "mine": "1"}
	if got.GetSpec().GetMinReadySeconds() != 0 || !maps.Equal(got.GetMetadata().GetLabels(), want) {
		t.Errorf("applied %v, want the labels %v, and minReadySeconds gone", got, want)
	}
	if got.GetSpec().Replicas != nil {
		t.Errorf("replicas, which were applied and are no more, are still %v", got.GetSpec().GetReplicas())
	}
	if again := f.apply(t, s); again.GetMetadata().GetResourceVersion() != got.GetMetadata().GetResourceVersion() {
		t.Errorf("applied again: %v, was %v", again, got)
	}
	stale := object.Clone(s)
	stale.Metadata.ResourceVersion = "1"
	_, err = f.client.ApplyMachineSet(t.Context(), &machinev1.ApplyMachineSetRequest{
		Namespace: ns, Name: "a", MachineSet: stale,
	})
	wantReason(t, err, codes.Aborted, metav1.ErrorReason_ERROR_REASON_CONFLICT)
}

// A document that was read and changed holds what was applied before; that does not count.
func TestApplyOfWhatWasReadRemovesWhatItLacks(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	s := set("a", 3)
	s.Metadata.Labels = map[string]string{"old": "1"}
	read := object.Clone(f.apply(t, s))
	read.Metadata.Labels = nil
	if got := f.apply(t, read); len(got.GetMetadata().GetLabels()) != 0 {
		t.Errorf("applied %v, want no label", got)
	}
}

func TestAKindMayBeAppliedAsAWhole(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Whole: true})
	s := set("a", 3)
	f.create(t, s)
	_, err := f.patch(t, "a", "application/merge-patch+json",
		`{"metadata":{"labels":{"mine":"1"}},"spec":{"minReadySeconds":9}}`)
	must(t, err)
	if got := f.apply(t, set("a", 3)); got.GetSpec().GetMinReadySeconds() != 0 || len(got.GetMetadata().GetLabels()) != 1 {
		t.Errorf("applied %v, want its spec as it was given, and the label", got)
	}
}

func TestDeletionWaitsForFinalizers(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Finalizers: []string{"windlass.dev/test"}})
	f.create(t, set("a", 1))
	gone, err := f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{Name: "a"})
	if err != nil || gone.GetMetadata().GetDeletionTimestamp() == nil {
		t.Fatalf("delete = %v, %v", gone, err)
	}
	_, err = f.patch(t, "a", "application/merge-patch+json",
		`{"metadata":{"finalizers":["windlass.dev/test","windlass.dev/more"]}}`)
	wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
	_, err = f.patch(t, "a", "application/merge-patch+json", `{"metadata":{"finalizers":null}}`)
	wantReason(t, err, codes.PermissionDenied, metav1.ErrorReason_ERROR_REASON_FORBIDDEN) // it is not the caller's
	_, err = f.table.Modify(t.Context(), object.Key{Namespace: ns, Name: "a"}, func(s *machinev1.MachineSet) error {
		s.Metadata.Finalizers = nil
		return nil
	})
	must(t, err)
	_, err = f.client.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{Name: "a"})
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
}

func TestPagesShowOneRevision(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	for i := range 7 {
		s := set(fmt.Sprintf("s%d", i), int32(i))
		s.Metadata.Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
		f.create(t, s)
	}
	var names []string
	req := &machinev1.ListMachineSetsRequest{Limit: 3}
	for {
		page, err := f.client.ListMachineSets(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.GetItems() {
			names = append(names, s.GetMetadata().GetName())
		}
		if page.GetMetadata().GetContinue() == "" {
			break
		}
		req.Continue = page.GetMetadata().GetContinue()
		f.create(t, set(fmt.Sprintf("s9%d", len(names)), 0)) // created after the list began
	}
	if fmt.Sprint(names) != "[s0 s1 s2 s3 s4 s5 s6]" {
		t.Errorf("pages = %v", names)
	}
	got, err := f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{
		LabelSelector: "odd=1", FieldSelector: "spec.replicas!=3", ReadMask: &fieldmaskpb.FieldMask{
			Paths: []string{"spec.replicas"},
		}, Limit: 5,
	})
	if err != nil || len(got.GetItems()) != 2 || got.GetItems()[1].GetSpec().GetReplicas() != 5 ||
		got.GetMetadata().GetContinue() != "" {
		t.Errorf("selected = %v, %v", got, err)
	}
	_, err = f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{LabelSelector: "a=b=c"})
	wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
	_, err = f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{Continue: "zzz"})
	wantReason(t, err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
}

// next returns the next message of a watch that is no later bookmark.
func next(t *testing.T, w machinev1.MachineSetService_WatchMachineSetsClient) *machinev1.WatchMachineSetsResponse {
	t.Helper()
	m, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWatchSendsEverythingOnceAndResumes(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("a", 1))
	w, err := f.client.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{LabelSelector: "!hidden"})
	if err != nil {
		t.Fatal(err)
	}
	if m := next(t, w); len(m.GetEvents()) != 1 || m.GetEvents()[0].GetType() != resource.Added {
		t.Fatalf("first = %v", m)
	}
	first := next(t, w)
	if !first.GetBookmark() || first.GetResourceVersion() == "" {
		t.Fatalf("second = %v, want the bookmark after the list", first)
	}
	b := f.create(t, set("b", 1))
	if m := next(t, w); m.GetEvents()[0].GetType() != resource.Added ||
		m.GetResourceVersion() != b.GetMetadata().GetResourceVersion() {
		t.Fatalf("after create = %v", m)
	}
	if _, err := f.patch(t, "b", "application/merge-patch+json", `{"metadata":{"labels":{"hidden":"1"}}}`); err != nil {
		t.Fatal(err)
	}
	if m := next(t, w); m.GetEvents()[0].GetType() != resource.Deleted ||
		m.GetEvents()[0].GetObject().GetMetadata().GetName() != "b" {
		t.Fatalf("after it was hidden = %v", m)
	}
	if _, err := f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, w); m.GetEvents()[0].GetType() != resource.Deleted {
		t.Fatalf("after deletion = %v", m)
	}
	again, err := f.client.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{
		ResourceVersion: first.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for range 3 {
		types = append(types, next(t, again).GetEvents()[0].GetType())
	}
	if fmt.Sprint(types) != "[ADDED MODIFIED DELETED]" {
		t.Errorf("resumed = %v", types)
	}
}

func TestWatchOfARevisionFromBeforeTheProcessIsBridgedFromEtcd(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	a := f.create(t, set("a", 1))
	f.create(t, set("b", 1))
	f.table.Replace(f.table.All(), f.table.Revision()) // as after a restart: objects, and an empty ring
	w, err := f.client.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{
		ResourceVersion: a.GetMetadata().GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := next(t, w); len(m.GetEvents()) != 1 || m.GetEvents()[0].GetObject().GetMetadata().GetName() != "b" {
		t.Errorf("bridged = %v", m)
	}
	f.create(t, set("c", 1))
	if m := next(t, w); m.GetEvents()[0].GetObject().GetMetadata().GetName() != "c" {
		t.Errorf("after the bridge = %v", m)
	}
}

// etcd compacts while a watch resumes: it then sends changes without the values before. The cache has only newer ones,
// so a deletion would be lost.
func TestAWatchIsNotBridgedOverValuesThatEtcdHasForgotten(t *testing.T) {
	st := etcdtest.Store(t)
	away := running(t, st)
	a, err := away.Create(t.Context(), set("a", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := away.Delete(t.Context(), ns, "a", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := away.Create(t.Context(), set("b", 1)); err != nil {
		t.Fatal(err)
	}
	table := running(t, store.New(forgetful(t), st.Prefix()))
	after, err := resource.ParseRevision(a.GetMetadata().GetResourceVersion())
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	var got []string
	err = table.Watching(t.Context(), "", resource.Selection{}, after, false,
		func(e resource.Events[*machinev1.MachineSet]) error {
			for _, ev := range e.Events {
				if got = append(got, ev.Type+" "+ev.Object.GetMetadata().GetName()); ev.Type == resource.Added {
					return enough
				}
			}
			return nil
		})
	if status.Code(err) != codes.OutOfRange && !slices.Equal(got, []string{"DELETED a", "ADDED b"}) {
		t.Errorf("the watch ended with %v after %v, want all changes or that it is too old", err, got)
	}
}

// forgetful returns a client of an etcd that has compacted the values before each change by the time that it sends it.
func forgetful(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				return forgetfulStream{stream}, err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

type forgetfulStream struct{ grpc.ClientStream }

func (s forgetfulStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if resp, ok := m.(*etcdserverpb.WatchResponse); ok {
		for _, e := range resp.Events {
			e.PrevKv = nil
		}
	}
	return err
}

// The objects that a watch begins with come from the cache, which may lag behind etcd: it shows everything that was
// written before, by any client.
func TestAWatchBeginsWithAllThatWasWrittenBefore(t *testing.T) {
	st := etcdtest.Store(t)
	table := running(t, st)
	elsewhere := store.New(etcdtest.Client(t), st.Prefix())
	other := store.New(etcdtest.Client(t), etcdtest.Prefix(t)) // moves etcd's revision, not the kind
	for n := range 50 {
		name := fmt.Sprintf("set-%d", n)
		record, err := proto.Marshal(&machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Namespace: ns, Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := elsewhere.Commit(t.Context(), store.Put("machinesets/"+ns+"/"+name, record, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Commit(t.Context(), store.Put(name, nil, 0)); err != nil {
			t.Fatal(err)
		}
		enough := errors.New("enough")
		found := 0
		err = table.Watching(t.Context(), "", resource.Selection{}, 0, false,
			func(e resource.Events[*machinev1.MachineSet]) error {
				found += len(e.Events)
				if e.Bookmark {
					return enough
				}
				return nil
			})
		if !errors.Is(err, enough) || found != n+1 {
			t.Fatalf("a watch after %d writes begins with %d objects: %v", n+1, found, err)
		}
	}
}

func TestWatchOfACompactedRevisionSaysListAgain(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	a := f.create(t, set("a", 1))
	b := f.create(t, set("b", 1))
	revision, _ := resource.ParseRevision(b.GetMetadata().GetResourceVersion())
	if _, err := etcdtest.Client(t).Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	f.table.Replace(f.table.All(), f.table.Revision())
	old, _ := resource.ParseRevision(a.GetMetadata().GetResourceVersion())
	w, err := f.client.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{
		ResourceVersion: resource.FormatRevision(old - 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Recv()
	wantReason(t, err, codes.OutOfRange, metav1.ErrorReason_ERROR_REASON_EXPIRED)
}

func TestTheWriterSeesItsOwnWriteInTheCache(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	for i := range 50 {
		name := fmt.Sprintf("s%d", i)
		if _, err := f.table.Create(t.Context(), set(name, 1)); err != nil {
			t.Fatal(err)
		}
		if _, ok := f.table.Lookup(ns, name); !ok {
			t.Fatalf("%s is not in the cache right after it was created", name)
		}
	}
}

func TestModifyTriesAgainUntilItsReadHolds(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("a", 0))
	const writers = 8
	errs := make(chan error, writers)
	for range writers {
		go func() {
			_, err := f.table.Modify(t.Context(), object.Key{Namespace: ns, Name: "a"}, func(s *machinev1.MachineSet) error {
				s.Spec.Replicas = proto.Int32(s.GetSpec().GetReplicas() + 1)
				return nil
			})
			errs <- err
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got, _ := f.table.Get(t.Context(), ns, "a"); got.GetSpec().GetReplicas() != writers {
		t.Errorf("replicas = %d, want %d: an increment was lost", got.GetSpec().GetReplicas(), writers)
	}
}

func TestAnInformerFollowsAndSurvivesBrokenStreams(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("a", 1))
	cut := &cutter{ClientConnInterface: f.conn}
	inf, err := informer.New[*machinev1.MachineSet](cut, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inf.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	if err := inf.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		cut.cut()
		s := f.create(t, set(fmt.Sprintf("s%d", i), 1))
		revision, _ := resource.ParseRevision(s.GetMetadata().GetResourceVersion())
		wait, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		err := inf.WaitRevision(wait, revision)
		stop()
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(inf.All()); n != 6 {
		t.Errorf("informer has %d objects, want 6", n)
	}
	if n := cut.cut(); n < 5 {
		t.Errorf("%d streams, want that they were cut", n)
	}
}

// TestAnInformerCatchesUpWithAllThatWasWrittenBefore has others write, of whom the service does not know, while streams
// break and while many ask at once.
func TestAnInformerCatchesUpWithAllThatWasWrittenBefore(t *testing.T) {
	st := etcdtest.Store(t)
	f, away := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{}), running(t, st)
	cut := &cutter{ClientConnInterface: f.conn}
	inf, err := informer.New[*machinev1.MachineSet](cut, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inf.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	var group errgroup.Group
	for i := range 40 {
		group.Go(func() error {
			s, err := away.Create(t.Context(), set(fmt.Sprintf("s%d", i), 1))
			if err != nil {
				return err
			}
			if i%8 == 7 {
				cut.cut()
			}
			wait, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			if err := inf.CatchUp(wait); err != nil {
				return err
			}
			if _, ok := inf.Lookup(ns, s.GetMetadata().GetName()); !ok {
				return fmt.Errorf("%s is not there", s.GetMetadata().GetName())
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// A stream that is open and brings nothing shows no difference from a kind that does not change.
func TestAnInformerCatchesUpThoughItsStreamHangs(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	hang := &hangs{ClientConnInterface: f.conn, from: make(chan struct{})}
	inf, err := informer.New[*machinev1.MachineSet](hang, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inf.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	if err := inf.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(hang.from)
	f.create(t, set("a", 1))
	if err := inf.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := inf.Lookup(ns, "a"); !ok {
		t.Error("it is not there")
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := inf.CatchUp(ended); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "machinesets") {
		t.Errorf("error %v, want one that names the kind", err)
	}
}

// hangs is a connection whose streams that are open when from is closed bring nothing after that.
type hangs struct {
	grpc.ClientConnInterface
	from chan struct{}
}

func (h *hangs) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	stream, err := h.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	select {
	case <-h.from:
		return stream, err
	default:
		return hungStream{stream, h.from}, err
	}
}

type hungStream struct {
	grpc.ClientStream
	from chan struct{}
}

func (s hungStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	select {
	case <-s.from:
		<-s.Context().Done()
		return s.Context().Err()
	default:
		return err
	}
}

// cutter is a connection whose streams can be broken.
type cutter struct {
	grpc.ClientConnInterface
	mu      sync.Mutex
	streams int
	cancel  context.CancelFunc
}

func (c *cutter) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams++
	ctx, c.cancel = context.WithCancel(ctx)
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

func (c *cutter) cut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	return c.streams
}
