package service

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
)

// nodeOwner is the sibling that owns nodes.
const nodeOwner = "eviction-controller"

func parse(args []string, out io.Writer) (serve.Config, error) {
	c := serve.Config{Name: "scheduler"}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.Peers[nodeOwner] == "":
		return c, errors.New("--peer eviction-controller=host:port is required")
	}
	return c, nil
}
