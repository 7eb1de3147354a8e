package cri

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

func TestResources(t *testing.T) {
	for _, of := range []struct {
		name                  string
		limits                cgroup.Limits
		quota, period, shares int64
		memory                int64
	}{
		{name: "nothing is asked for", shares: 2},
		{name: "a request", limits: cgroup.Limits{MilliCPURequest: 500, MemoryRequest: 1 << 20}, shares: 512},
		{
			name: "limits", limits: cgroup.Limits{MilliCPU: 250, MilliCPURequest: 250, Memory: 1 << 30},
			quota: 25_000, period: 100_000, shares: 256, memory: 1 << 30,
		},
		{name: "a tiny limit", limits: cgroup.Limits{MilliCPU: 1}, quota: 1000, period: 100_000, shares: 2},
		{name: "a huge request", limits: cgroup.Limits{MilliCPURequest: 1_000_000}, shares: 262_144},
	} {
		t.Run(of.name, func(t *testing.T) {
			got := Spec{Limits: of.limits}.resources()
			if got.GetCpuQuota() != of.quota || got.GetCpuPeriod() != of.period || got.GetCpuShares() != of.shares ||
				got.GetMemoryLimitInBytes() != of.memory {
				t.Errorf("resources %v", got)
			}
		})
	}
}

func TestScoresOfContainersWhenMemoryIsShort(t *testing.T) {
	const memory = 8 << 30
	requests := cgroup.Limits{MilliCPURequest: 100}
	for _, of := range []struct {
		name         string
		limits, pool cgroup.Limits
		want         int64
	}{
		{name: "best effort", want: 1000},
		{name: "best effort with a limit of processes", pool: cgroup.Limits{Processes: 4096}, want: 1000},
		{name: "others of the pod ask for something", pool: requests, want: 999},
		{name: "no memory is asked for", limits: requests, pool: requests, want: 999},
		{name: "a quarter of the memory", limits: cgroup.Limits{MemoryRequest: memory / 4}, want: 750},
		{name: "all memory", limits: cgroup.Limits{MemoryRequest: memory}, want: 3},
		{
			name:   "guaranteed",
			limits: cgroup.Limits{MilliCPU: 100, MilliCPURequest: 100, Memory: 1 << 20, MemoryRequest: 1 << 20}, want: -997,
		},
		{
			name:   "a request below its limit",
			limits: cgroup.Limits{MilliCPU: 100, MilliCPURequest: 50, Memory: 1 << 20, MemoryRequest: 1 << 20}, want: 999,
		},
	} {
		t.Run(of.name, func(t *testing.T) {
			if got := oomScore(of.limits, of.pool, memory); got != of.want {
				t.Errorf("score %d, want %d", got, of.want)
			}
		})
	}
}

func TestWhatErrorsOfStartsMean(t *testing.T) {
	for _, of := range []struct {
		message          string
		neverRan, cutOff bool
	}{
		{"failed to create containerd task: failed to create shim task: context canceled: unknown", true, true},
		{"failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown", true, true},
		{`failed to start containerd task "0": context canceled: unknown`, false, true},
		{`failed to start containerd task "0": context deadline exceeded`, false, true},
		{`sandbox container "0" is not running`, true, false},
		{`failed to create containerd task: OCI runtime create failed: exec: "/none": no such file`, false, false},
		{
			`failed to create containerd task: failed to create shim task: OCI runtime create failed: exec: ` +
				`"context canceled": executable file not found in $PATH: unknown`, false, false,
		},
	} {
		if got := neverRan(of.message); got != of.neverRan {
			t.Errorf("%s: never ran %v", of.message, got)
		}
		if got := cutOff(of.message); got != of.cutOff {
			t.Errorf("%s: cut off %v", of.message, got)
		}
	}
}

func TestAnEndThatTheRuntimeDidNotSee(t *testing.T) {
	now := time.Now()
	st := &runtimeapi.ContainerStatus{ExitCode: 255, Reason: "Unknown", StartedAt: 1, FinishedAt: now.UnixNano()}
	if e := exitOf(st); e.Reason != ReasonUnknown || e.Code != codeKilled || e.Message == "" || !e.FinishedAt.Equal(now) {
		t.Errorf("exit %+v", e)
	}
	st.Reason = "Error" // the program's own code
	if e := exitOf(st); e.Reason != "" || e.Code != 255 {
		t.Errorf("exit %+v", e)
	}
}

func TestNoErrorHasTheSecretOfACommand(t *testing.T) {
	refused := errors.New("connection refused")
	_, err := exitCode(context.Background(), fmt.Errorf("error sending request: %w", &url.Error{
		Op: "Post", URL: "http://127.0.0.1:1/exec/secret", Err: refused,
	}))
	if !errors.Is(err, refused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}
