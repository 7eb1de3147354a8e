package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// ofInstances reports whether get is asked for the instances of the providers, which are no objects of the cluster.
func ofInstances(args []string) bool {
	return len(args) > 0 && (args[0] == "instances" || args[0] == "instance" || strings.HasPrefix(args[0], "instance/"))
}

// getInstances prints the instances of all providers, or those whose provider IDs are given. A provider that does not
// answer is an error, after what is known was printed.
func getInstances(ctx context.Context, e *session.Env, c *client.Client, args []string, form printer.Format, f getFlags,
) error {
	if f.watch || f.watchOnly || f.Selects() || f.sortBy != "" || f.showLabels || len(f.labelKeys) > 0 {
		return errors.New("instances are no objects of the cluster: only -o, --no-headers and provider IDs apply to them")
	}
	ids := args[1:]
	if id, ok := strings.CutPrefix(args[0], "instance/"); ok {
		ids = append([]string{id}, ids...)
	}
	resp, err := machinev1.NewInstanceServiceClient(c.Conn()).ListInstances(ctx, &machinev1.ListInstancesRequest{})
	if err != nil {
		return err
	}
	var failed failure.List
	for _, id := range ids {
		if !slices.ContainsFunc(resp.GetItems(), func(i *machinev1.ProvidedInstance) bool {
			return i.GetInstance().GetProviderId() == id
		}) && !f.ignore {
			failed.Add(fmt.Errorf("instance %q not found", id))
		}
	}
	resp.Items = slices.DeleteFunc(resp.Items, func(i *machinev1.ProvidedInstance) bool {
		return len(ids) > 0 && !slices.Contains(ids, i.GetInstance().GetProviderId())
	})
	failed.Add(printInstances(e, resp, form, len(ids) > 0))
	for _, u := range resp.GetUnknown() {
		failed.Add(fmt.Errorf("the instances of %s are not known: %s", u.GetProvider(), u.GetMessage()))
	}
	return failed.Err()
}

func printInstances(e *session.Env, resp *machinev1.ListInstancesResponse, form printer.Format, filtered bool) error {
	wide := form.Word == printer.Wide
	switch form.Word {
	case printer.JSON, printer.YAML:
		return printer.Message(e.Out, form, resp)
	case printer.Name:
		for _, item := range resp.GetItems() {
			fmt.Fprintf(e.Out, "instance/%s\n", item.GetInstance().GetProviderId())
		}
		return nil
	case printer.Table, printer.Wide:
	default:
		return errors.New("-o must be wide, json, yaml or name for instances")
	}
	if len(resp.GetItems()) == 0 {
		if len(resp.GetUnknown()) == 0 && !filtered {
			fmt.Fprintln(e.Err, "No instances found")
		}
		return nil
	}
	var rows [][]string
	if !form.Headless {
		head := []string{"PROVIDER ID", "STATE", "MACHINE", "ZONE", "AGE", "ORPHAN"}
		if wide {
			head = append(head, "PROVIDER", "TYPE", "ADDRESSES", "REASON")
		}
		rows = append(rows, head)
	}
	now := time.Now()
	for _, item := range resp.GetItems() {
		i := item.GetInstance()
		orphan := "no"
		if item.GetOrphan() {
			orphan = "yes"
		}
		if t := item.GetOrphanTime(); t != nil {
			orphan = "for " + table.Age(t, now)
		}
		row := []string{
			i.GetProviderId(), table.OrNone(i.GetState()), table.OrNone(item.GetMachine().GetName()),
			table.OrNone(i.GetZone()), table.Age(i.GetCreateTime(), now), orphan,
		}
		if wide {
			var addresses []string
			for _, a := range i.GetAddresses() {
				if !slices.Contains(addresses, a.GetAddress()) {
					addresses = append(addresses, a.GetAddress())
				}
			}
			row = append(row, item.GetProvider(), table.OrNone(i.GetInstanceType()),
				table.OrNone(strings.Join(addresses, ",")), table.OrNone(item.GetMessage()))
		}
		rows = append(rows, row)
	}
	return table.New(e.Out).Print(rows...)
}
