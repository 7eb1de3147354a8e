package adm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/updateservice"
)

const (
	updateServiceCallers = 256 // connections at once
	updateServiceRead    = 5 * time.Second
	updateServiceWrite   = time.Minute
	updateServiceIdle    = 2 * time.Second
	updateServiceStop    = 5 * time.Second
)

type updateServiceFlags struct {
	updateservice.Source
	listen, cert, key string
	refresh           time.Duration
	channel, arch     string
}

func newUpdateService(e *session.Env) *cobra.Command {
	var f updateServiceFlags
	cmd := &cobra.Command{
		Use:   "update-service --graph-data DIR --release-images DIR",
		Short: "Serve update graphs to clusters, or print one; needs no cluster",
		Long: "Serve the update graphs of a directory of graph data (version, channels/, blocked-edges/) and of the releases " +
			"in OCI layouts, over the protocol of Cincinnati: clusters use http://HOST:PORT/graph as their upstream. With " +
			"--channel, print the graph of that channel instead. Data that make no sense are an error; while it serves, the " +
			"former graphs are served until they are corrected.",
		Example: `  windlass adm update-service --graph-data graph-data --release-images images --listen 0.0.0.0:8080
  windlass adm update-service --graph-data graph-data --release-images images --channel stable-1.1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.GraphData == "":
				return errors.New("--graph-data is required")
			case (f.cert == "") != (f.key == ""):
				return errors.New("--tls-cert and --tls-key belong together")
			case f.refresh < time.Second:
				return fmt.Errorf("--refresh %v: must be a second or more", f.refresh)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			s, skipped, err := updateservice.Load(ctx, f.Source)
			if err != nil {
				return err
			}
			for _, image := range skipped {
				fmt.Fprintf(e.Err, "warning: no release: %s\n", image)
			}
			if f.channel == "" {
				return f.serve(ctx, e, s, skipped)
			}
			graph, err := s.Graph(f.channel, f.arch)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(e.Out, "%s\n", graph)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.GraphData, "graph-data", "", "directory of graph data")
	fs.StringArrayVar(&f.Layouts, "release-images", nil, "directory with an OCI layout of releases; may be repeated")
	fs.StringVar(&f.Repository, "repository", "windlass/release",
		"name of the release images, to which the digest is added; HOST/NAME if they are in a registry")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to serve on")
	fs.StringVar(&f.cert, "tls-cert", "", "certificate to serve HTTPS with; empty: HTTP")
	fs.StringVar(&f.key, "tls-key", "", "key of the certificate")
	fs.DurationVar(&f.refresh, "refresh", time.Minute, "how often the graph data and the layouts are read again")
	fs.StringVar(&f.channel, "channel", "", "print the graph of a channel, and serve nothing")
	fs.StringVar(&f.arch, "arch", updateservice.DefaultArch, "architecture of the graph to print")
	return cmd
}

// serve answers until ctx ends.
func (f *updateServiceFlags) serve(ctx context.Context, e *session.Env, s *updateservice.Service,
	skipped []string,
) error {
	if f.cert != "" { // before it is said that it serves
		if _, err := tls.LoadX509KeyPair(f.cert, f.key); err != nil {
			return fmt.Errorf("--tls-cert: %w", err)
		}
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: s, ReadTimeout: updateServiceRead, WriteTimeout: updateServiceWrite, IdleTimeout: updateServiceIdle,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(e.Err, "", log.LstdFlags),
	}
	ended := make(chan error, 1)
	go func() {
		if f.cert != "" {
			ended <- server.ServeTLS(netutil.LimitListener(l, updateServiceCallers), f.cert, f.key)
			return
		}
		ended <- server.Serve(netutil.LimitListener(l, updateServiceCallers))
	}()
	scheme := map[bool]string{false: "http", true: "https"}[f.cert != ""]
	fmt.Fprintf(e.Out, "serving %s://%s/graph\n", scheme, l.Addr())
	tick := time.NewTicker(f.refresh)
	defer tick.Stop()
	last := ""
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), updateServiceStop)
			defer cancel()
			return server.Shutdown(late)
		case <-tick.C:
		}
		now, err := s.Reload(ctx)
		for _, image := range now { // each once
			if !slices.Contains(skipped, image) {
				fmt.Fprintf(e.Err, "warning: no release: %s\n", image)
			}
		}
		skipped = now
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != last && ctx.Err() == nil { // each failure once, and its end
			if last = text; text != "" {
				fmt.Fprintf(e.Err, "warning: the former graphs are served on: %s\n", text)
			} else {
				fmt.Fprintln(e.Err, "the graphs are those of the data again")
			}
		}
	}
}
