package plan

import "time"

// Health is what an agent knows of one of the cluster's gateways.
type Health int

// What an agent knows of a gateway.
const (
	Unknown    Health = iota // it has not been asked, or has not answered yet
	Away                     // there is no connection to it, or it does not answer
	NotServing               // it answers that for some time it has not read from etcd, or not reached a leader
	Serving
)

// settled is how long a gateway must have been serving before an agent leaves another one, which serves as well, for
// it. A gateway that restarts again and again, or whose etcd comes and goes, is not worth two breaks of every stream
// each time.
const settled = 3 * time.Second

// Gateway is one gateway as an agent sees it.
type Gateway struct {
	Health Health
	Since  time.Time // of Health
}

// GatewayView is what the choice of a gateway depends on.
type GatewayView struct {
	Now      time.Time
	Using    int       // index of the gateway in use
	Gateways []Gateway // in the order in which this agent prefers them; at least one
}

// GatewayPlan is which gateways an agent calls and watches.
type GatewayPlan struct {
	Use   int       // index of the one to call
	Watch int       // the health of so many is watched, from the first one on
	Wake  time.Time // when to decide again even if nothing changes; zero means never
}

// ChooseGateway returns the gateway for an agent's calls: the first that serves. One that does not serve is left only
// for one that does, or, if it cannot be reached, for one that can. Without a majority of etcd no gateway serves, and
// the guardian brings the majority back through the agents' streams, so these stay then.
func ChooseGateway(v GatewayView) GatewayPlan {
	now := v.Gateways[v.Using].Health
	p := GatewayPlan{Use: v.Using}
	switch now {
	case Serving:
		p.Use, p.Wake = preferred(v)
	case NotServing:
		p.Use = first(v, Serving)
	case Away:
		if p.Use = first(v, Serving); p.Use == v.Using {
			p.Use = first(v, NotServing)
		}
	case Unknown: // its answer is awaited: calls wait for the connection, too
	}
	switch v.Gateways[p.Use].Health {
	case Serving, Unknown:
		p.Watch = p.Use + 1 // those before it are returned to
	default:
		p.Watch = len(v.Gateways)
	}
	if len(v.Gateways) == 1 {
		p.Watch = 0 // there is no choice
	}
	return p
}

// first returns the first gateway with that health, or the one in use if none has it.
func first(v GatewayView, health Health) int {
	for i, g := range v.Gateways {
		if g.Health == health {
			return i
		}
	}
	return v.Using
}

// preferred returns the first gateway that has served for long enough, up to the one in use, and when another one will
// have.
func preferred(v GatewayView) (use int, wake time.Time) {
	for i, g := range v.Gateways[:v.Using] {
		if g.Health != Serving {
			continue
		}
		at := g.Since.Add(settled)
		if !at.After(v.Now) {
			return i, wake
		}
		if wake.IsZero() || at.Before(wake) {
			wake = at
		}
	}
	return v.Using, wake
}
