package proxy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/backoff"
)

const (
	// reportAfter is how long an obstacle lasts before it is reported: some pass at once. reportEvery is the shortest
	// time between two reports, and reportMost how many ports one has: the scheduler accepts 64 ports of a node in a
	// minute.
	reportAfter, reportEvery, reportMost = time.Second, 10 * time.Second, 10
	// reportAgain is when an obstacle that lasts is reported again. The event of the first report expires after an hour.
	reportAgain = 5 * time.Minute
	// reportPatience bounds a report, and longReport the pause before one that failed is repeated.
	reportPatience, longReport = 10 * time.Second, time.Minute
	// maxError is how long the error of a report may be.
	maxError = 128
)

// pace is when ports are reported.
type pace struct{ after, every, again time.Duration }

// reportedPort identifies a port in what was reported. A service that is created again under its name has another uid.
type reportedPort struct {
	uid string
	portName
}

// lastReport is the last report of a port that did not listen.
type lastReport struct {
	why string // never empty
	at  time.Time
}

// keepReporting reports the ports that cannot be opened, and those of them that are open again, until ctx ends. What an
// earlier agent reported is not known: a port that is open by now is not reported.
func (p *Proxy) keepReporting(ctx context.Context) {
	said, failed := map[reportedPort]lastReport{}, ""
	again := backoff.Spread(reportAfter, longReport)
	for backoff.Sleep(ctx, p.pace.after) {
		due, wake := p.unreported(said, time.Now())
		if len(due) == 0 {
			p.awaitNews(ctx, wake)
			continue
		}
		due = due[:min(len(due), reportMost)]
		if err := p.reportPorts(ctx, due); err != nil {
			if text := status.Convert(err).Message(); ctx.Err() == nil && text != failed {
				failed = text
				p.cfg.Log.InfoContext(ctx, "ports of services are not reported", "error", err)
			}
			again.Wait(ctx)
			continue
		}
		failed = ""
		again.Reset()
		for _, d := range due {
			if said[d.port] = (lastReport{d.why, time.Now()}); d.why == "" {
				delete(said, d.port)
			}
		}
		backoff.Sleep(ctx, p.pace.every)
	}
}

// awaitNews waits until a port has begun to listen or failed to, or until wake, or until ctx ends.
func (p *Proxy) awaitNews(ctx context.Context, wake time.Time) {
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case <-p.news:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// dueReport is a port that is to be reported.
type dueReport struct {
	port    reportedPort
	service string
	why     string // why it does not listen; empty if it does
	last    time.Time
}

// unreported returns the ports that are to be reported, those first that were not reported for longest, and when to
// look again if nothing changes. It forgets in said the ports that do not exist any more.
func (p *Proxy) unreported(said map[reportedPort]lastReport, now time.Time) (due []dueReport, wake time.Time) {
	wake = now.Add(p.pace.again)
	exist := map[reportedPort]bool{}
	p.mu.Lock()
	for key, ports := range p.ports {
		for name, o := range ports {
			port := reportedPort{p.services[key].GetUid(), name}
			exist[port] = true
			was, has := said[port]
			switch why, failed := o.failure(); {
			case why == "" && has, failed && (why != was.why || now.Sub(was.at) >= p.pace.again):
				due = append(due, dueReport{port, key, why, was.at})
			case failed && was.at.Add(p.pace.again).Before(wake):
				wake = was.at.Add(p.pace.again)
			}
		}
	}
	p.mu.Unlock()
	maps.DeleteFunc(said, func(port reportedPort, _ lastReport) bool { return !exist[port] })
	slices.SortFunc(due, func(a, b dueReport) int {
		return cmp.Or(a.last.Compare(b.last), strings.Compare(a.service, b.service), a.port.address.Compare(b.port.address),
			strings.Compare(a.port.protocol, b.port.protocol))
	})
	return due, wake
}

func (p *Proxy) reportPorts(ctx context.Context, due []dueReport) error {
	ctx, cancel := context.WithTimeout(ctx, reportPatience)
	defer cancel()
	r := &schedulingv1.ReportServicePortsRequest{NodeName: p.cfg.Node}
	for _, d := range due {
		namespace, name, _ := strings.Cut(d.service, "/")
		r.Ports = append(r.Ports, &schedulingv1.ServicePortReport{
			Namespace: namespace, Name: name, Uid: d.port.uid, Protocol: d.port.protocol,
			Port: int32(d.port.address.Port()), Error: printable(d.why),
		})
	}
	_, err := p.agents.ReportServicePorts(ctx, r)
	return err
}

// printable returns an error as a report may have it.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), maxError)]
}

// failure returns why the port does not listen, empty if it does. failed is false if that is no error, such as that no
// pod serves.
func (o *port) failure() (why string, failed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why, o.why != "" && o.why == o.said
}
