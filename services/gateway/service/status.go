package service

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/windlass-dev/windlass/gen"
	"github.com/windlass-dev/windlass/services/gateway/backend"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
	"github.com/windlass-dev/windlass/services/gateway/openapi"
)

// open are the addresses that need no credentials: they say nothing of the cluster but whether it can be reached.
func open(c *catalog.Catalog, alive programs, router *backend.Router) map[string]http.Handler {
	handlers := openapi.Handlers(sync.OnceValues(func() ([]byte, error) { return openapi.Document(gen.OpenAPI) }))
	handlers["GET /{$}"] = index(c)
	handlers["GET /healthz"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	handlers["GET /readyz"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		missing, why := alive.pool.Missing(), router.Serving()
		if why == nil && !alive.serving(r.Context()) {
			why = errors.New("this gateway has not read from etcd yet")
		}
		if len(missing) > 0 || why != nil {
			body := map[string]any{"status": "not ready"}
			if len(missing) > 0 {
				body["unreachable"] = missing
			}
			if why != nil {
				body["reason"] = why.Error()
			}
			answer(w, http.StatusServiceUnavailable, body)
			return
		}
		answer(w, http.StatusOK, map[string]any{"status": "ready"})
	})
	return handlers
}

// index names where to go next: the lists that need no name.
func index(c *catalog.Catalog) http.Handler {
	paths := []string{openapi.DocumentPath, openapi.PagePath, "/healthz", "/readyz"}
	for _, r := range c.Routes() {
		if r.Verb == http.MethodGet && len(r.Fields) == 0 && !r.Method.Streaming && !slices.Contains(paths, r.Template) {
			paths = append(paths, r.Template)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"paths": paths})
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client is gone
}
