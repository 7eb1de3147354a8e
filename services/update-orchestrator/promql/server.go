package promql

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// maxAnswer is how much of an answer of a server is read: one of a rule has one sample.
const maxAnswer = 1 << 20

// Server evaluates queries by a Prometheus server.
type Server struct{ api v1.API }

// NewServer returns the evaluation by the server at an address. transport connects to it; tokenFile, if not empty, has
// the bearer token to send, and is read for each query.
func NewServer(address, tokenFile string, transport http.RoundTripper) (*Server, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: &bounded{transport, tokenFile, at.Host}})
	if err != nil {
		return nil, err
	}
	return &Server{v1.NewAPI(client)}, nil
}

// Evaluate is as Engine.Evaluate.
func (s *Server) Evaluate(ctx context.Context, text string) (bool, error) {
	if len(text) > maxText {
		return false, fmt.Errorf("the query has %d bytes, more than %d", len(text), maxText)
	}
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	result, warnings, _, err := s.api.Query(ctx, text, time.Now())
	if err != nil {
		return false, fmt.Errorf("the Prometheus server: %w", err)
	}
	if len(warnings) > 0 { // such as that a part of the data could not be read
		return false, fmt.Errorf("the Prometheus server: %s", strings.Join(warnings, "; "))
	}
	vector, ok := result.(model.Vector)
	if !ok {
		return false, fmt.Errorf("the query returns a %s, not a vector", result.Type())
	}
	if len(vector) != 1 {
		return false, oneSample(len(vector))
	}
	return decide(float64(vector[0].Value))
}

// bounded adds the token to requests and bounds answers.
type bounded struct {
	http.RoundTripper
	tokenFile string
	host      string // which gets the token: no other one to which it redirects
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.tokenFile != "" && r.URL.Host == b.host {
		token, err := os.ReadFile(b.tokenFile)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = limited{io.LimitReader(answer.Body, maxAnswer), answer.Body}
	return answer, nil
}

type limited struct {
	io.Reader
	io.Closer
}
