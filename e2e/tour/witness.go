package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// moment is something that happens once while a control-plane machine is replaced.
type moment string

// Moments, in the order in which they are told.
const (
	deletionAsked   moment = "deletion asked for"
	replacementMade moment = "replacement created"
	replacementRuns moment = "replacement runs"
	learnerJoined   moment = "learner joined"
	learnerVotes    moment = "learner votes"
	leadershipMoved moment = "leadership moved"
	oldVoterLeft    moment = "old voter left"
	quorumHookGone  moment = "quorum hook gone"
	nodeCordoned    moment = "node cordoned"
	nodeDrained     moment = "node drained"
	machineDrained  moment = "machine drained"
	taskPending     moment = "task pending"
	taskClaimed     moment = "task claimed"
	taskCompleted   moment = "task completed"
	backupHookGone  moment = "backup hook gone"
	instanceGone    moment = "instance gone"
	nodeGone        moment = "node gone"
	machineGone     moment = "machine gone"
)

// sighting is a moment as a witness saw it.
type sighting struct {
	moment   moment
	revision int64 // of the change that shows it; 0 where that is no stored object
	at       time.Time
	text     string // for people; empty for what need not be told
}

// witness watches a control-plane machine being replaced. It tells what it sees through out and decides nothing.
type witness struct {
	cluster *cluster
	shell   shell
	machine string // that is replaced; its node and its member have the same name
	uid     string
	others  []string // the control-plane machines beside it
	led     bool     // its member leads at first
	out     chan<- sighting
	waits   chan<- string              // each line that describe shows
	quorums chan<- *etcdv1.Quorum      // each change of the quorum
	from    map[string]string          // revision to watch from, by kind
	seen    map[moment]bool            // of the machines' watch alone
}
