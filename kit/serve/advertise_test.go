package serve_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

func TestAWildcardIsNotAdvertised(t *testing.T) {
	files := servetest.New(t).Files(servetest.Service("machine-api"))
	for name, c := range map[string]struct {
		listen, advertise string
		ok                bool
	}{
		"a wildcard":                    {"0.0.0.0:0", "", false},
		"a wildcard of IPv6":            {"[::]:0", "", false},
		"no host":                       {":0", "", false},
		"a wildcard that is advertised": {"127.0.0.1:0", "0.0.0.0:7103", false},
		"one in other words":            {"127.0.0.1:0", "[::ffff:0.0.0.0]:7103", false},
		"a zero":                        {"127.0.0.1:0", "0:7103", false},
		"no host that is advertised":    {"127.0.0.1:0", ":7103", false},
		"no port":                       {"127.0.0.1:0", "machine-api:0", false},
		"a wildcard behind a name":      {"0.0.0.0:0", "machine-api:7101", true},
		"an address of one host":        {"127.0.0.1:0", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := serve.New(serve.Config{
				Name: "machine-api", Listen: c.listen, Advertise: c.advertise, Dir: t.TempDir(), TLSDir: filepath.Dir(files.Cert),
			}, slog.New(slog.DiscardHandler))
			if (err == nil) != c.ok {
				t.Errorf("New: %v", err)
			}
			if err == nil {
				_ = p.Close()
			}
		})
	}
}
