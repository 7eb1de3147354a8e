package target

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// liveNames returns the names of the objects of a type for completion; none if the cluster does not answer in time.
func liveNames(ctx context.Context, e *session.Env, word string) []string {
	const patience = 2 * time.Second // limit for pressing the tab key
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := e.FindKind(ctx, word)
	if err != nil {
		return nil
	}
	var names []string
	_ = e.WithClient(func(c *client.Client) error { // completion cannot report errors
		list, _, err := c.List(ctx, k, Scope(e, k, Selection{}))
		for _, o := range list {
			names = append(names, o.GetMetadata().GetName())
		}
		return err
	})
	return names
}

// CompleteObjects completes TYPE NAME… and TYPE/NAME… with types and names from the cluster.
func CompleteObjects(e *session.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if word, _, ok := strings.Cut(typed, "/"); ok {
			var out []string
			for _, name := range liveNames(cmd.Context(), e, word) {
				out = append(out, word+"/"+name)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) > 0 {
			return slices.DeleteFunc(liveNames(cmd.Context(), e, args[0]), func(n string) bool {
				return slices.Contains(args[1:], n)
			}), cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, k := range e.Kinds(cmd.Context()) {
			out = append(out, k.GetPlural())
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteNames completes names of objects of one type.
func CompleteNames(e *session.Env, word string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(liveNames(cmd.Context(), e, word), func(n string) bool { return slices.Contains(args, n) }),
			cobra.ShellCompDirectiveNoFileComp
	}
}
