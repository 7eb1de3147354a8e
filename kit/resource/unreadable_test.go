package resource_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// stored is a payload as it is in etcd: behind a format, the id of a key and the id of a write.
func stored(key byte, payload []byte) string {
	return "\x01" + string([]byte{key}) + "\x01\x02\x03\x04\x05\x06\x07\x08" + string(payload)
}

// sets is a table of machine sets that runs, its store and etcd's client.
func sets(t *testing.T) (*resource.Table[*machinev1.MachineSet], *store.Store, *clientv3.Client) {
	t.Helper()
	client := etcdtest.Client(t)
	st := store.New(client, etcdtest.Prefix(t))
	return running(t, st), st, client
}

func running(t *testing.T, st *store.Store) *resource.Table[*machinev1.MachineSet] {
	t.Helper()
	table := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*machinev1.MachineSet]{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	ready, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	if err := table.WaitSynced(ready); err != nil {
		t.Fatalf("the kind is not served: %v", err)
	}
	return table
}

func newSet(name string) *machinev1.MachineSet {
	return &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec:     &machinev1.MachineSetSpec{},
	}
}

func TestARecordThatCannotBeReadIsSkippedAndReported(t *testing.T) {
	sealed := stored(7, []byte("sealed by a key that is not at hand"))
	for name, raw := range map[string]string{
		"no envelope":                           "\xffgarbage",
		"no message of the kind":                stored(0, []byte("\xff\xff\xff")),
		"a message without metadata":            stored(0, nil),
		"sealed with a key that is not at hand": sealed,
	} {
		t.Run(name, func(t *testing.T) {
			table, st, client := sets(t)
			if _, err := table.Create(t.Context(), newSet("before")); err != nil {
				t.Fatal(err)
			}
			key := st.Prefix() + "machinesets/" + ns + "/broken"
			if _, err := client.Put(t.Context(), key, raw); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, err := table.Create(ctx, newSet("after")); err != nil {
				t.Errorf("create beside it: %v", err)
			}
			if ctx.Err() != nil {
				t.Fatal("a creation of the kind hangs")
			}
			again := running(t, st) // a process that starts
			for _, table := range []*resource.Table[*machinev1.MachineSet]{table, again} {
				var names []string
				for _, o := range table.All() {
					names = append(names, o.GetMetadata().GetName())
				}
				if fmt.Sprint(names) != "[after before]" {
					t.Errorf("objects = %v, want those that can be read", names)
				}
			}
			bad := st.Unreadable()
			if len(bad) != 1 || bad[0].Kind != "MachineSet" || bad[0].Name != "broken" || bad[0].Namespace != ns {
				t.Errorf("unreadable records = %+v, want the one", bad)
			}
			// It is neither overwritten nor lost.
			if _,
				err := table.Create(ctx, newSet("broken")); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
				t.Errorf("Create = %v over it, want that it exists", err)
			}
			if _, err := table.Update(ctx, newSet("broken")); status.Code(rpcerr.From(err)) != codes.DataLoss {
				t.Errorf("Update = %v, want DATA_LOSS", err)
			}
			if _, err := table.Delete(ctx, ns, "broken", nil); status.Code(rpcerr.From(err)) != codes.DataLoss {
				t.Errorf("Delete = %v, want DATA_LOSS", err)
			}
			resp, err := client.Get(ctx, key)
			if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != raw {
				t.Errorf("the record is %v (%v), want it as it was", resp, err)
			}
			// Once an administrator has removed it, nothing is reported any more.
			if _, err := client.Delete(ctx, key); err != nil {
				t.Fatal(err)
			}
			if _, err := table.Create(ctx, newSet("broken")); err != nil {
				t.Errorf("create after its removal: %v", err)
			}
			if bad := st.Unreadable(); len(bad) != 0 {
				t.Errorf("unreadable records = %+v after its removal", bad)
			}
		})
	}
}

// A record is not reported for what it was before, nor once it is gone.
func TestARecordIsReportedOnlyWhileItCannotBeRead(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	table, st, client := sets(t)
	if _, err := table.Create(ctx, newSet("other")); err != nil {
		t.Fatal(err)
	}
	prefix := st.Prefix() + "machinesets/" + ns + "/"
	other, err := client.Get(ctx, prefix+"other")
	if err != nil {
		t.Fatal(err)
	}
	spoil := func() int64 {
		t.Helper()
		resp, err := client.Txn(ctx).Then(clientv3.OpPut(prefix+"broken", "garbage"),
			clientv3.OpPut(prefix+"other", string(other.Kvs[0].Value))).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	remove := func() {
		t.Helper()
		if _, err := client.Delete(ctx, prefix+"broken"); err != nil {
			t.Fatal(err)
		}
	}
	past := spoil()
	remove()

	// A watch that resumes then, and whose client leaves right after.
	late := store.New(client, st.Prefix())
	left := errors.New("the client has left")
	err = running(t, late).Watching(ctx, "", resource.Selection{}, past-1, false,
		func(resource.Events[*machinev1.MachineSet]) error { return left })
	if !errors.Is(err, left) {
		t.Errorf("Watching = %v, want the error of its reader", err)
	}
	if bad := late.Unreadable(); len(bad) != 0 {
		t.Errorf("unreadable records = %+v, want none: it was so in the past", bad)
	}

	// It is deleted while the table does not follow.
	away := store.New(client, st.Prefix())
	table = resource.NewTable(away, protovalidate.GlobalValidator, resource.Config[*machinev1.MachineSet]{})
	follow := func(until int64) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- table.Run(ctx) }()
		if err := table.WaitRevision(ctx, until); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	follow(spoil())
	if bad := away.Unreadable(); len(bad) != 1 {
		t.Errorf("unreadable records = %+v, want the one", bad)
	}
	remove()
	resp, err := client.Put(ctx, prefix+"other", string(other.Kvs[0].Value))
	if err != nil {
		t.Fatal(err)
	}
	follow(resp.Header.Revision)
	if bad := away.Unreadable(); len(bad) != 0 {
		t.Errorf("unreadable records = %+v, want none: it is gone", bad)
	}
}

func TestObjectsAndAnnotationsAreLimited(t *testing.T) {
	table, _, _ := sets(t)
	annotated := newSet("annotated")
	annotated.Metadata.Annotations = map[string]string{
		"a": strings.Repeat("x", 128<<10),
		"b": strings.Repeat("x", 128<<10),
	}
	large := newSet("large")
	large.Spec.Template = &machinev1.MachineTemplateSpec{
		Metadata: &metav1.ObjectMeta{Annotations: map[string]string{"a": strings.Repeat("x", 3<<19)}},
	}
	for path, o := range map[string]*machinev1.MachineSet{"metadata.annotations": annotated, "": large} {
		_, err := table.Create(t.Context(), o)
		fields, ok := rpcerr.Fields(err)
		if !ok || len(fields) == 0 || fields[0].Path != path || !strings.Contains(fields[0].Description,
			"may not be more than") {
			t.Errorf("Create = %v, want a fault of the field %q", err, path)
		}
	}
	annotated.Metadata.Annotations["b"] = strings.Repeat("x", 128<<10-2)
	if _, err := table.Create(t.Context(), annotated); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

func TestAListLargerThanAMessageReachesAWatch(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	const n = 18
	for i := range n {
		o := newSet(fmt.Sprintf("set-%02d", i))
		o.Spec.Template = &machinev1.MachineTemplateSpec{Spec: &machinev1.MachineSpec{}, Metadata: &metav1.ObjectMeta{
			Annotations: map[string]string{"large": strings.Repeat("x", 1<<20)},
		}}
		if _, err := f.table.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w, err := f.client.WatchMachineSets(t.Context(), &machinev1.WatchMachineSetsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for seen := 0; ; {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen += len(m.GetEvents())
		if m.GetBookmark() {
			if seen != n {
				t.Errorf("%d objects, want %d", seen, n)
			}
			return
		}
	}
}

func TestAWatchThatResumesFarBackIsBounded(t *testing.T) {
	table, st, _ := sets(t)
	first, err := table.Create(t.Context(), newSet("a"))
	if err != nil {
		t.Fatal(err)
	}
	after, err := resource.ParseRevision(first.GetMetadata().GetResourceVersion())
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	for i := range 24 {
		if _, err := table.Modify(t.Context(), object.KeyOf(first), func(o *machinev1.MachineSet) error {
			o.Spec.Template = &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Annotations: map[string]string{"a": large + fmt.Sprint(i)}},
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	again := running(t, st) // its cache starts empty
	sent := 0
	err = again.Watching(t.Context(), "", resource.Selection{}, after, false,
		func(resource.Events[*machinev1.MachineSet]) error {
			sent++
			<-time.After(time.Second) // a reader that is slower than etcd
			return nil
		})
	if status.Code(rpcerr.From(err)) != codes.OutOfRange {
		t.Errorf("Watching = %v after %d messages, want OUT_OF_RANGE", err, sent)
	}
}

// A process that begins reads a large kind in several parts: none is lost, also where a part ends with a record that
// cannot be read, and what was deleted unseen is no longer reported.
func TestALargeKindIsReadInParts(t *testing.T) {
	table, st, client := sets(t)
	var many []*machinev1.MachineSet
	for i := range 2050 {
		if i != 999 {
			many = append(many, newSet(fmt.Sprintf("s%04d", i)))
		}
	}
	for _, w := range table.CreateAll(t.Context(), many) {
		if w.Err != nil {
			t.Fatal(w.Err)
		}
	}
	key := st.Prefix() + "machinesets/" + ns + "/s0999"
	if _, err := client.Put(t.Context(), key, "\xffgarbage"); err != nil {
		t.Fatal(err)
	}
	again := store.New(client, st.Prefix())
	again.NoteUnreadable(store.Unreadable{Key: "machinesets/" + ns + "/gone", Revision: 1})
	if got := len(running(t, again).All()); got != len(many) {
		t.Errorf("%d objects, want %d", got, len(many))
	}
	if bad := again.Unreadable(); len(bad) != 1 || bad[0].Name != "s0999" {
		t.Errorf("unreadable records = %+v, want the one", bad)
	}
}
