package snapshot_test

import (
	"net/http"
	"net/http/httptest"
)

// tampering is an object store that may return other bytes than it was given.
type tampering struct {
	store  http.Handler
	change func(name string, b []byte) []byte // nil: none
}

func (s tampering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.change == nil || r.Method != http.MethodGet {
		s.store.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	s.store.ServeHTTP(answer, r)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(s.change(r.URL.Path, answer.Body.Bytes())) // the client may be gone
}
