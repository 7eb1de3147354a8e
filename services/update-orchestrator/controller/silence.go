package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	askEvery    = 3 * time.Second
	askPatience = 3 * time.Second
)

// listen asks every service how it is, again and again, until ctx ends. The operator of one that stays silent becomes
// Available=Unknown; its own report replaces that when it is back.
func (c *Controller) listen(ctx context.Context) error {
	heard := map[string]plan.Contact{}
	silent := map[string]bool{}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		problems := ask(ctx, c.Services)
		if ctx.Err() != nil {
			return nil
		}
		deaf := problems[c.Self] != ""
		for service, problem := range problems {
			now := time.Now() // monotonic: a step of the clock is no silence
			heard[service] = heard[service].Called(now, problem)
			v := plan.SilenceView{Now: now, Service: service, Contact: heard[service], Deaf: deaf}
			if op, ok := c.Tables.Operators.Lookup("", topology.Operator(service)); ok {
				v.Operator = op
			}
			condition := plan.Silence(v)
			switch {
			case problem == "" && silent[service]:
				delete(silent, service)
				c.Log.InfoContext(ctx, "service answers again", "peer", service)
			case condition != nil:
				if err := c.silence(ctx, v, condition); err != nil {
					c.Log.WarnContext(ctx, "silent service not reported", "peer", service, "error", err)
					continue // decided again after the next question
				}
				silent[service] = true
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ask asks all services at once and returns why each does not answer, "" for one that does.
func ask(ctx context.Context, services map[string]grpc.ClientConnInterface) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	problems := map[string]string{}
	for service, conn := range services {
		all.Go(func() {
			_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			mu.Lock()
			defer mu.Unlock()
			problems[service] = problemOf(err)
		})
	}
	all.Wait()
	return problems
}

func problemOf(err error) string {
	switch status.Code(err) {
	case codes.OK:
		return ""
	case codes.DeadlineExceeded:
		return fmt.Sprintf("no answer within %v", askPatience)
	case codes.Unavailable:
		return "it cannot be connected to"
	}
	return status.Convert(err).Message()
}

// silence writes the condition of a silent service to the operator as it was judged, and makes the operator if there is
// none.
func (c *Controller) silence(ctx context.Context, v plan.SilenceView, condition *metav1.Condition) error {
	op := v.Operator
	if op == nil {
		var err error
		op, err = c.Tables.Operators.Create(ctx, &updatev1.ClusterOperator{
			Metadata: &metav1.ObjectMeta{Name: topology.Operator(v.Service)},
		})
		if err != nil {
			return err
		}
	}
	next := proto.CloneOf(op)
	next.Status = plan.Silenced(op.GetStatus(), condition)
	written, err := c.Tables.Operators.UpdateStatus(ctx, next)
	if err != nil {
		return rpcerr.IgnoreChanged(err) // the service has reported just now
	}
	c.Log.WarnContext(ctx, "service is silent", "peer", v.Service, "since", v.Contact.Since)
	c.Events.Event(written, "Warning", plan.ServiceSilent, condition.GetMessage())
	return nil
}
