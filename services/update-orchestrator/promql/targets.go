package promql

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// maxMetrics is how many bytes of metrics a program may have: some hundred times what the largest has.
const maxMetrics = 16 << 20

// Service returns another service as a target. address is where it serves gRPC; files has this program's certificate.
func Service(name, address string, files identity.Files) (Target, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return Target{}, fmt.Errorf("metrics of %s: %w", name, err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return Target{}, fmt.Errorf("metrics of %s: %w", name, err)
	}
	settings, err := files.ClientTLS(host)
	if err != nil {
		return Target{}, fmt.Errorf("metrics of %s: %w", name, err)
	}
	at := net.JoinHostPort(host, strconv.Itoa(number+topology.MetricsStep))
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: identity.WithURI(settings, identity.ServiceURI(name)), DisableKeepAlives: true,
	}}
	return Target{Job: name, Instance: at, Read: func(ctx context.Context) ([]byte, error) {
		return get(ctx, client, "https://"+at+"/metrics")
	}}, nil
}

func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxMetrics+1))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %.200s", answer.Status, bytes.TrimSpace(body))
	case len(body) > maxMetrics:
		return nil, fmt.Errorf("more than %d bytes", maxMetrics)
	}
	return body, nil
}

// Self returns this program as a target. instance is its address.
func Self(name, instance string, metrics prometheus.Gatherer) Target {
	return Target{Job: name, Instance: instance, Read: func(context.Context) ([]byte, error) {
		families, err := metrics.Gather()
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
				return nil, err
			}
		}
		return out.Bytes(), nil
	}}
}
