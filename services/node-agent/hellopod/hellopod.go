// Package hellopod is the program behind images named hello-pod: a tiny HTTP server that greets.
package hellopod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Greeting is what the server answers.
const Greeting = "Hello OpenShift!\n"

const defaultPort = "8080"

// Run greets until ctx ends. It writes a line to out when it starts and when it ends. It fails if the port is taken;
// with --any-port it then listens on a free one.
func Run(ctx context.Context, args []string, out io.Writer) error {
	var address, port string
	var anyPort bool
	fs := pflag.NewFlagSet("hello-pod", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&address, "address", "", "address to listen on; empty means all")
	fs.StringVar(&port, "port", cmp.Or(os.Getenv("PORT"), defaultPort), "port to listen on")
	fs.BoolVar(&anyPort, "any-port", false, "listen on a free port if the port is taken")
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	debug.SetGCPercent(20) // it is idle, and there may be many
	at := net.JoinHostPort(address, port)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if anyPort && errors.Is(err, syscall.EADDRINUSE) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "serving on %s\n", l.Addr())
	s := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(out, "request of %s for %s\n", r.RemoteAddr, r.URL.Path)
			_, _ = io.WriteString(w, Greeting)
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	fmt.Fprintln(out, "ended")
	return nil
}
