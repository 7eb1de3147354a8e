package resource_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc"
)

func TestWhatAGroupHoldsIsServedRunAndWaitedFor(t *testing.T) {
	st, v := etcdtest.Store(t), protovalidate.GlobalValidator
	sets := resource.NewTable(st, v, resource.Config[*machinev1.MachineSet]{})
	machines := resource.NewTable(st, v, resource.Config[*machinev1.Machine]{})
	srv := grpc.NewServer()
	g := resource.NewGroup(srv)
	g.Add(sets, &machinev1.MachineSetService_ServiceDesc, nil)
	g.Add(machines, &machinev1.MachineService_ServiceDesc, nil)
	for _, name := range []string{"windlass.machine.v1.MachineSetService", "windlass.machine.v1.MachineService"} {
		if _, ok := srv.GetServiceInfo()[name]; !ok {
			t.Errorf("%s is not served", name)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := g.WaitSynced(ended); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "machinesets") {
		t.Errorf("before it runs: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	must(t, g.WaitSynced(t.Context()))
	if !sets.IsSynced() || !machines.IsSynced() {
		t.Error("the group is synced before its tables are")
	}
	stop()
	must(t, <-done)
}
