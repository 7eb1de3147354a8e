package command

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

func newEncryption(e *env) *cobra.Command {
	cmd := &cobra.Command{Use: "encryption", Short: "Work on the keys that seal records in etcd: rotate"}
	cmd.AddCommand(&cobra.Command{
		Use:   "rotate",
		Short: "Make new keys for sealed records; services write their sealed records again by them within seconds",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := e.cluster()
			if err != nil {
				return err
			}
			rotated, err := c.RotateRecordKeys(time.Now())
			for _, service := range slices.Sorted(maps.Keys(rotated)) {
				fmt.Fprintf(e.out, "%s: key %d seals from now on, older keys still open\n", service, rotated[service])
			}
			return err
		},
	})
	return cmd
}
