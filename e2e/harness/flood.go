package harness

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// floodVariable makes a test binary a client of a flood instead; see Flooding.
const floodVariable = "WINDLASS_TEST_FLOOD"

// flood is what one client process of a flood does.
type flood struct {
	Address     string // to connect to
	Net         int    // connections come from 127.Net.x.y
	Connections int
}

// Flooding makes the process a client of a flood if it was started as one. A TestMain calls it first.
func Flooding() {
	text := os.Getenv(floodVariable)
	if text == "" {
		return
	}
	var f flood
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	f.run()
	os.Exit(0)
}

// run opens the connections, each from an address of its own, finishes the handshakes, and then sends nothing. It
// counts what is open on standard output twice a second, and ends when standard input does.
func (f flood) run() {
	var open, tried atomic.Int64
	var wait sync.WaitGroup
	slots := make(chan struct{}, 64)
	wait.Go(func() {
		for i := range f.Connections {
			slots <- struct{}{}
			go func() {
				conn := f.connect(i)
				tried.Add(1)
				<-slots
				if conn == nil {
					return
				}
				open.Add(1)
				defer open.Add(-1)
				io.Copy(io.Discard, conn) //nolint:errcheck // until the other side closes it
				conn.Close()
			}()
		}
	})
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what counts
		close(ended)
	}()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		fmt.Println(open.Load(), tried.Load())
		select {
		case <-tick.C:
		case <-ended:
			return
		}
	}
}

func (f flood) connect(i int) net.Conn {
	from := &net.TCPAddr{IP: net.IPv4(127, byte(f.Net), byte(1+i/250), byte(1+i%250))}
	raw, err := (&net.Dialer{LocalAddr: from, Timeout: 10 * time.Second}).Dial("tcp", f.Address)
	if err != nil {
		return nil
	}
	conn := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // an attacker does not care
		NextProtos:         []string{"h2", "http/1.1"},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if conn.HandshakeContext(ctx) != nil {
		raw.Close()
		return nil
	}
	return conn
}

// Flood is connections without credentials from client processes.
type Flood struct{ clients []*floodClient }

type floodClient struct {
	cmd         *exec.Cmd
	stdin       io.Closer
	open, tried atomic.Int64
}

// StartFlood opens connections to an address from several processes, at most 250 times 250 each, every one from another
// address of 127.0.0.0/8. The processes end with the test. The package's TestMain must call Flooding.
func StartFlood(t testing.TB, address string, processes, connections int) *Flood {
	t.Helper()
	f := &Flood{}
	for i := range processes {
		text, err := json.Marshal(flood{Address: address, Net: 100 + i, Connections: connections / processes})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this very test binary
		cmd.Env = append(os.Environ(), floodVariable+"="+string(text), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		client := &floodClient{cmd: cmd, stdin: stdin}
		f.clients = append(f.clients, client)
		read := make(chan struct{})
		go func() {
			defer close(read)
			client.follow(out)
		}()
		t.Cleanup(func() {
			stdin.Close()
			<-read
			cmd.Wait() //nolint:errcheck // it has ended by itself
		})
	}
	return f
}

func (c *floodClient) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		open, tried, _ := strings.Cut(lines.Text(), " ")
		for text, into := range map[string]*atomic.Int64{open: &c.open, tried: &c.tried} {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				into.Store(n)
			}
		}
	}
}

// Counts returns how many connections are open now, and how many were tried.
func (f *Flood) Counts() (open, tried int) {
	for _, c := range f.clients {
		open += int(c.open.Load())
		tried += int(c.tried.Load())
	}
	return open, tried
}

// End ends the client processes.
func (f *Flood) End() {
	for _, c := range f.clients {
		c.stdin.Close()
	}
}
