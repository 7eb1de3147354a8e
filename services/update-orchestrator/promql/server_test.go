package promql

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAServerEvaluatesQueries(t *testing.T) {
	var answer string
	var asked *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		asked = r
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(server.URL, token, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	vector := func(samples string) string {
		return `{"status":"success","data":{"resultType":"vector","result":[` + samples + `]}}`
	}
	for answered, want := range map[string]string{
		vector(`{"metric":{},"value":[1,"1"]}`): "true",
		vector(`{"metric":{},"value":[1,"0"]}`): "false",
		vector(`{"metric":{},"value":[1,"2"]}`): "must return 0 or 1",
		vector(``):                              "must return one sample",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`: "returns a scalar",
		`{"status":"error","errorType":"bad_data","error":"no such thing"}`:    "no such thing",
		`{`:                                    "the Prometheus server: ",
		`"` + strings.Repeat("x", maxAnswer+1): "the Prometheus server: ",
	} {
		answer = answered
		applies, err := s.Evaluate(t.Context(), "up == 1")
		got := fmt.Sprint(applies)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%.80s: %s, want %s", answered, got, want)
		}
	}
	if asked.Form.Get("query") != "up == 1" || asked.Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("asked %v with %v", asked.Form, asked.Header)
	}
	if _, err := s.Evaluate(t.Context(), strings.Repeat("x", maxText+1)); err == nil {
		t.Error("a query that is too long was sent")
	}
	server.Close()
	if _, err := s.Evaluate(t.Context(), "up"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error = %v", err)
	}
}

func TestTheTokenIsForTheServerOnly(t *testing.T) {
	var got string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
	}))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(server.URL, token, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Evaluate(t.Context(), "up"); err == nil || got != "" {
		t.Errorf("error = %v, another server got %q", err, got)
	}
}
