package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// NewAPIResources returns the command api-resources.
func NewAPIResources(e *session.Env) *cobra.Command {
	var output, apiGroup string
	var namespaced, noHeaders bool
	cmd := &cobra.Command{
		Use:   "api-resources",
		Short: "List the types of objects",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			form, err := printer.Parse(output, printer.Wide, printer.Name)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, k := range e.Kinds(cmd.Context()) {
				if cmd.Flags().Changed("namespaced") && k.GetNamespaced() != namespaced || cmd.Flags().Changed("api-group") &&
					k.GetGroup() != apiGroup {
					continue
				}
				if form.Word == printer.Name {
					fmt.Fprintln(e.Out, k.FullName())
					continue
				}
				row := []string{
					k.GetPlural(), strings.Join(k.GetShortNames(), ","), k.APIVersion(), fmt.Sprint(k.GetNamespaced()),
					k.GetKind(),
				}
				if form.Word == printer.Wide {
					row = append(row, strings.Join(verbsOf(k), ","))
				}
				rows = append(rows, row)
			}
			if form.Word == printer.Name {
				return nil
			}
			head := []string{"NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"}
			if form.Word == printer.Wide {
				head = append(head, "VERBS")
			}
			if !noHeaders {
				rows = append([][]string{head}, rows...)
			}
			return table.New(e.Out).Print(rows...)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "wide or name")
	cmd.Flags().StringVar(&apiGroup, "api-group", "", "show only the types of this API group")
	cmd.Flags().BoolVar(&namespaced, "namespaced", true,
		"show only namespaced types, or with =false only those that are not")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print headers")
	return cmd
}

// verbsOf returns the verbs that a kind supports, in alphabetical order.
func verbsOf(k client.Kind) []string {
	var out []string
	for _, v := range []struct {
		verb   string
		method resource.Method
	}{
		{"apply", resource.Apply},
		{"create", resource.Create},
		{"delete", resource.Delete},
		{"get", resource.Get},
		{"list", resource.List},
		{"patch", resource.Patch},
		{"update", resource.Update},
		{"watch", resource.Watch},
	} {
		if _, ok := k.Methods[v.method]; ok {
			out = append(out, v.verb)
		}
	}
	slices.Sort(out)
	return out
}
