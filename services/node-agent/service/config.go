package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/process"
)

type config struct {
	dir           string
	memberCommand []string
	helloCommand  []string
	images        []string
	podsDir       string
	podUsers      process.Users
	logLevel      string
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	fs := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&c.dir, "dir", "", "directory of the machine; its provider put bootstrap.json there")
	fs.StringSliceVar(&c.memberCommand, "member-command", nil,
		"program that runs an etcd member, and its first arguments (default: this program, serve, etcd-member)")
	fs.StringSliceVar(&c.helloCommand, "hello-command", nil,
		"program to run for images named hello-pod, and its first arguments (default: this program, serve, hello-pod)")
	fs.StringSliceVar(&c.images, "images", nil,
		"directories with OCI layouts, each at the name of its image (beside the machine's own directory images)")
	fs.StringVar(&c.podsDir, "pods-dir", "",
		"directory of the machine's pods (default: pods in --dir); the users of --pod-users must be able to pass through to it")
	fs.Var(&c.podUsers, "pod-users",
		"users that the machine's pods run as, one each (default: pods run as this program's user)")
	fs.StringVar(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.dir == "":
		return c, errors.New("--dir is required")
	}
	var err error
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return c, err
	}
	if c.podsDir == "" {
		c.podsDir = filepath.Join(c.dir, "pods")
	}
	self, err := os.Executable()
	if err != nil {
		return c, err
	}
	if len(c.memberCommand) == 0 {
		c.memberCommand = []string{self, "serve", "etcd-member"}
	}
	if len(c.helloCommand) == 0 {
		c.helloCommand = []string{self, "serve", "hello-pod"}
	}
	c.images = append([]string{filepath.Join(c.dir, "images")}, c.images...)
	return c, nil
}

func (c config) logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})).With("service", "node-agent"), nil
}
