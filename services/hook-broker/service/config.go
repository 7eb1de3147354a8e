package service

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/webhook"
)

// machineAPI is the sibling that has the machines.
const machineAPI = "machine-api"

// options are the settings of this service alone.
type options struct {
	webhooks []string // addresses that webhooks may have
	keys     string   // directory of the keys that sign what is sent to them
}

func parse(args []string, out io.Writer) (serve.Config, options, error) {
	c, o := serve.Config{Name: "hook-broker"}, options{}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.StringArrayVar(&o.webhooks, "webhook-allow", nil,
		"https URL that webhooks of hook owners may have, with everything below its path; repeat for more (default none)")
	fs.StringVar(&o.keys, "webhook-keys", "",
		"directory with a key of at least 32 bytes for each hook owner with a webhook, in a file with the HookOwner's name")
	if err := fs.Parse(args); err != nil {
		return c, o, err
	}
	switch {
	case fs.NArg() > 0:
		return c, o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !c.Knows(machineAPI):
		return c, o, errors.New("--peer machine-api=host:port is required")
	case len(o.webhooks) > 0 && o.keys == "":
		return c, o, errors.New("--webhook-allow needs --webhook-keys")
	}
	for _, u := range o.webhooks {
		if why := webhook.URLFault(u); why != "" {
			return c, o, fmt.Errorf("--webhook-allow %q %s", u, why)
		}
	}
	return c, o, nil
}
