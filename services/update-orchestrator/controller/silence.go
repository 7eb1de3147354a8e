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

const askPatience = 3 * time.Second

// silences is what is known of the services' answers while this process leads. Only its loop touches it.
type silences struct {
	contacts map[string]plan.Contact
	reported map[string]bool // services whose operators say that they are silent
}

// contact asks every service how it is. The operator of one that stays silent becomes Available=Unknown; its own report
// replaces that when it is back.
func (c *Controller) contact(ctx context.Context, _ string) (time.Time, error) {
	problems := ask(ctx, c.Services)
	if ctx.Err() != nil {
		return time.Time{}, nil
	}
	known := c.term.silences
	for service, problem := range problems {
		now := time.Now() // monotonic: a step of the clock is no silence
		known.contacts[service] = known.contacts[service].Called(now, problem)
		v := plan.SilenceView{
			Now: now, Service: service, Contact: known.contacts[service], Deaf: problems[c.Self] != "",
		}
		if op, ok := c.Tables.Operators.Lookup("", topology.Operator(service)); ok {
			v.Operator = op
		}
		condition := plan.Silence(v)
		switch {
		case problem == "" && known.reported[service]:
			delete(known.reported, service)
			c.Log.InfoContext(ctx, "service answers again", "peer", service)
		case condition != nil:
			if err := c.silence(ctx, v, condition); err != nil {
				c.Log.WarnContext(ctx, "silent service not reported", "peer", service, "error", err)
				continue // decided again after the next question
			}
			known.reported[service] = true
		}
	}
	return time.Now().Add(plan.AskEvery), nil
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
