package resource_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// byColor claims the label color.
func byColor(s *machinev1.MachineSet) []resource.Claim {
	return []resource.Claim{{What: "color", Value: s.GetMetadata().GetLabels()["color"], Path: "metadata.labels['color']"}}
}

func colored(namespace, name, color string) *machinev1.MachineSet {
	s := set(name, 1)
	s.Metadata.Namespace, s.Metadata.Labels = namespace, map[string]string{"color": color}
	return s
}

func TestApplySaysWhichObjectHoldsAClaim(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Claims: byColor})
	apply := func(name, color string) error {
		_, err := f.client.ApplyMachineSet(t.Context(), &machinev1.ApplyMachineSetRequest{
			Namespace: ns, Name: name, MachineSet: colored(ns, name, color),
		})
		return err
	}
	must(t, apply("a", "red"))
	must(t, apply("c", "blue"))
	for what, name := range map[string]string{"an object that is new": "b", "one that exists": "c"} {
		err := apply(name, "red")
		want := fmt.Sprintf(`MachineSet %q: metadata.labels['color']: color "red" belongs to MachineSet %s/a`, name, ns)
		if status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != want ||
			rpcerr.TakenField(err) != "metadata.labels['color']" {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
}

// refusingStore returns a store of its own, to which etcd refuses to write as long as refuses is set.
func refusingStore(t *testing.T, refuses *atomic.Bool) *store.Store {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				if refuses.Load() && strings.HasSuffix(method, "/Txn") {
					return status.Error(codes.PermissionDenied, "no writes")
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return store.New(client, etcdtest.Prefix(t))
}

func TestObjectsHoldTheClaimsThatTheirKindHadNotYet(t *testing.T) {
	var refuses atomic.Bool
	st := refusingStore(t, &refuses)
	before := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{})
	before.create(t, colored("one", "a", "red"))
	before.create(t, colored("two", "b", "red"))
	before.create(t, colored("two", "c", "blue"))
	f := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{Claims: byColor})
	must(t, f.table.WaitSynced(t.Context()))
	refuses.Store(true)
	var log lines
	tried, done := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer close(done)
		f.table.HoldClaims(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() { close(tried) })
	}()
	<-tried
	refuses.Store(false)
	holder := func(color, want string) {
		t.Helper()
		servetest.Await(t, func() string {
			_, err := f.table.Create(t.Context(), colored("one", "new", color), resource.WriteOptions{DryRun: true})
			if rpcerr.TakenField(err) == "" || !strings.HasSuffix(err.Error(), " belongs to MachineSet "+want) {
				return fmt.Sprintf("%s: %v, want it to belong to %s", color, err, want)
			}
			return ""
		})
	}
	holder("blue", "two/c")
	holder("red", "one/a")
	servetest.Await(t, func() string {
		if n := log.count("objects share"); n != 1 {
			return fmt.Sprintf("that two objects have a claim is logged %d times", n)
		}
		return ""
	})
	if n := log.count("claims are not held yet"); n != 1 {
		t.Errorf("that etcd refuses is logged %d times", n)
	}
	select {
	case <-done:
		t.Error("it is over with a claim that two objects have")
	default:
	}
	_, err := f.table.Delete(t.Context(), "one", "a", nil)
	must(t, err)
	holder("red", "two/b")
	<-done
	if n := log.count("objects share"); n != 1 {
		t.Errorf("that two objects have a claim is logged %d times", n)
	}
}

// lines is what was logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(text))
}

func TestAClaimIsHeldByOneObjectOfAllNamespaces(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Claims: byColor, Finalizers: []string{"windlass.dev/test"}})
	create := func(s *machinev1.MachineSet, o ...resource.WriteOptions) error {
		t.Helper()
		_, err := f.table.Create(t.Context(), s, o...)
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS ||
			status.Convert(
				err).Message() != `MachineSet "b": metadata.labels['color']: color "red" belongs to MachineSet one/a` {
			t.Errorf("%s: %v", what, err)
		}
	}
	recolor := func(key object.Key, color string) error {
		_, err := f.table.Modify(t.Context(), key, func(s *machinev1.MachineSet) error {
			s.Metadata.Labels["color"] = color
			return nil
		})
		return err
	}
	if err := create(colored("one", "a", "red")); err != nil {
		t.Fatal(err)
	}
	refused("a dry run", create(colored("two", "b", "red"), resource.WriteOptions{DryRun: true}))
	refused("a creation", create(colored("two", "b", "red")))
	refused("a batch", f.table.CreateAll(t.Context(), []*machinev1.MachineSet{colored("two", "b", "red")})[0].Err)
	if _, err := f.table.Get(t.Context(), "two", "b"); status.Code(err) != codes.NotFound {
		t.Errorf("what was refused is there: %v", err)
	}
	if err := create(colored("two", "b", "blue")); err != nil {
		t.Fatal(err)
	}
	refused("a change", recolor(object.Key{Namespace: "two", Name: "b"}, "red"))

	// Given up, by a change and by the end of the object, not by its deletion alone.
	if err := recolor(object.Key{Namespace: "one", Name: "a"}, "green"); err != nil {
		t.Fatal(err)
	}
	if err := recolor(object.Key{Namespace: "two", Name: "b"}, "red"); err != nil {
		t.Errorf("a claim that was given up: %v", err)
	}
	if _, err := f.table.Delete(t.Context(), "two", "b", nil); err != nil {
		t.Fatal(err)
	}
	if err := create(colored("one", "c", "red")); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		t.Errorf("the claim of an object that is being deleted: %v", err)
	}
	if _, err := f.table.Modify(t.Context(), object.Key{Namespace: "two", Name: "b"},
		func(s *machinev1.MachineSet) error { s.Metadata.Finalizers = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := create(colored("one", "c", "red")); err != nil {
		t.Errorf("the claim of an object that is gone: %v", err)
	}
}

func TestOfConcurrentCreationsOneGetsTheClaim(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Claims: byColor})
	for round := range 20 {
		const rivals = 8
		errs := make([]error, rivals)
		var group sync.WaitGroup
		for i := range rivals {
			group.Go(func() {
				_, errs[i] = f.table.Create(t.Context(), colored(fmt.Sprintf("ns-%d", i), fmt.Sprintf("s-%d", round),
					fmt.Sprintf("c-%d", round)))
			})
		}
		group.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if won != 1 {
			t.Fatalf("round %d: %d of %d got the claim, want 1: %v", round, won, rivals, errors.Join(errs...))
		}
	}
}
