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
	"time"

	"github.com/spf13/pflag"
)

// Greeting is what the server answers.
const Greeting = "Hello OpenShift!\n"

const defaultPort = "8080"

// Run greets until ctx ends. It writes a line to out when it starts and when it ends. If the port is taken it says so,
// and runs on without it.
func Run(ctx context.Context, args []string, out io.Writer) error {
	var address, port string
	fs := pflag.NewFlagSet("hello-pod", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&address, "address", "", "address to listen on; empty means all")
	fs.StringVar(&port, "port", cmp.Or(os.Getenv("PORT"), defaultPort), "port to listen on")
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	debug.SetGCPercent(20) // it is idle, and there may be many
	at := net.JoinHostPort(address, port)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		fmt.Fprintf(out, "running without a port: %v\n", err)
		<-ctx.Done()
		fmt.Fprintln(out, "ended")
		return nil
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
