package controller

import (
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// A machine that was lost and made again has the name of before: its former member may still be listed.
func TestMembersOfOneNameRemainTwoInTheInitialCluster(t *testing.T) {
	list := []plan.Member{
		{ID: 1, Name: "m-0", PeerURLs: []string{"https://127.0.1.1:2380"}},
		{ID: 2, Name: "m-0", PeerURLs: []string{"https://127.0.1.2:2380"}},
		{ID: 3, Name: "m-1", PeerURLs: []string{"https://127.0.1.3:2380"}},
		{ID: 4, PeerURLs: []string{"https://127.0.1.4:2380"}},
	}
	offer := agents.Offer{Node: "m-1", PeerURL: "https://127.0.1.4:2380"}
	urls := map[string]string{}
	for entry := range strings.SplitSeq(initialCluster(list, offer), ",") {
		name, url, _ := strings.Cut(entry, "=")
		if urls[name] != "" {
			t.Errorf("%s and %s are both named %s", urls[name], url, name)
		}
		urls[name] = url
	}
	if len(urls) != len(list) || urls[offer.Node] != offer.PeerURL {
		t.Errorf("the initial cluster is %v", urls)
	}
}
