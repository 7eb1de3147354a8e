package openapi

import (
	"net/http"

	"github.com/swaggest/swgui/v5emb"
)

// Addresses of the document and its page.
const (
	DocumentPath = "/openapi.json"
	PagePath     = "/docs/"
)

// Handlers serve the document and the page, by patterns of http.ServeMux.
func Handlers(document func() ([]byte, error)) map[string]http.Handler {
	page := v5emb.New("Windlass", DocumentPath, PagePath)
	return map[string]http.Handler{
		"GET " + DocumentPath: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			data, err := document()
			if err != nil {
				http.Error(w, "the document cannot be made", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Write(data) //nolint:errcheck // the client is gone
		}),
		"GET " + PagePath: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy",
				"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'")
			page.ServeHTTP(w, r)
		}),
	}
}
