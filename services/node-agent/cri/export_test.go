package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RotateLogs does at once what Run does every 10 s.
func (r *Runtime) RotateLogs(ctx context.Context) { r.rotateLogs(ctx) }

// KeepLogs has a runtime that does not run yet rotate no logs by itself.
func (r *Runtime) KeepLogs() { r.rotateEvery = time.Hour }

// Wrap has a runtime that does not run yet reach its container runtime through another client.
func (r *Runtime) Wrap(with func(runtimeapi.RuntimeServiceClient) runtimeapi.RuntimeServiceClient) {
	r.cri = with(r.cri)
}
