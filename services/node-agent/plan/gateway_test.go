package plan

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestChooseGateway(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	long, justNow := now.Add(-time.Hour), now.Add(-time.Second)
	serving, refusing, away := Gateway{Serving, long}, Gateway{NotServing, long}, Gateway{Away, long}
	for name, tc := range map[string]struct {
		using    int
		gateways []Gateway
		want     GatewayPlan
	}{
		"the only gateway is called whatever it is like": {0, []Gateway{away}, GatewayPlan{Use: 0}},
		"a gateway that serves is watched alone":         {0, []Gateway{serving, {}, {}}, GatewayPlan{Use: 0, Watch: 1}},
		"the first answer of the first gateway is awaited": {
			0, []Gateway{{}, {}, {}}, GatewayPlan{Use: 0, Watch: 1},
		},
		"of a gateway that stopped serving the others are asked": {
			0,
			[]Gateway{refusing, {}, {}},
			GatewayPlan{Use: 0, Watch: 3},
		},
		"a gateway that stopped serving is left at once": {
			0,
			[]Gateway{refusing, {}, {Serving, now}},
			GatewayPlan{Use: 2, Watch: 3},
		},
		"a gateway that is away is left at once": {
			1,
			[]Gateway{away, away, {Serving, now}},
			GatewayPlan{Use: 2, Watch: 3},
		},
		"the first that serves is used": {
			0,
			[]Gateway{away, serving, serving},
			GatewayPlan{Use: 1, Watch: 2},
		},
		"without any that serves the one in use stays": {
			1,
			[]Gateway{refusing, refusing, refusing},
			GatewayPlan{Use: 1, Watch: 3},
		},
		"one that answers is better than one that is away": {
			0,
			[]Gateway{away, refusing, {}},
			GatewayPlan{Use: 1, Watch: 3},
		},
		"if all are away the one in use stays": {
			1,
			[]Gateway{away, away, away},
			GatewayPlan{Use: 1, Watch: 3},
		},
		"a preferred gateway is watched while another is used": {
			1,
			[]Gateway{away, serving, {}},
			GatewayPlan{Use: 1, Watch: 2},
		},
		"a preferred gateway is returned to once it has settled": {
			2,
			[]Gateway{away, serving, serving},
			GatewayPlan{Use: 1, Watch: 2},
		},
		"a preferred gateway that serves since a moment ago waits": {
			1, []Gateway{{Serving, justNow}, serving}, GatewayPlan{Use: 1, Watch: 2, Wake: justNow.Add(settled)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want,
				ChooseGateway(GatewayView{Now: now, Using: tc.using, Gateways: tc.gateways})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAGatewayIsOnlyLeftForABetterOne(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 10_000 {
		v := GatewayView{Now: now}
		for range 1 + rand.N(5) {
			v.Gateways = append(v.Gateways, Gateway{Health(rand.N(4)), now.Add(-rand.N(2 * settled))})
		}
		v.Using = rand.N(len(v.Gateways))
		p := ChooseGateway(v)
		from, to := v.Gateways[v.Using].Health, v.Gateways[p.Use].Health
		if p.Use != v.Using && (to < from || to == from && (to != Serving || p.Use > v.Using)) {
			t.Fatalf("%+v is left for %d", v, p.Use)
		}
		if len(v.Gateways) > 1 && p.Watch <= p.Use {
			t.Fatalf("%+v: the gateway in use is not watched: %+v", v, p)
		}
		v.Using = p.Use
		if again := ChooseGateway(v); again.Use != p.Use {
			t.Fatalf("%+v: %+v, then %+v", v, p, again)
		}
	}
}
