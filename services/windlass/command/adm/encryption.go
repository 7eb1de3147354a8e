package adm

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newEncryption(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "encryption", Short: "Manage the keys that encrypt records in etcd"}
	cmd.AddCommand(&cobra.Command{
		Use:   "rotate",
		Short: "Generate new encryption keys; services re-encrypt their records within seconds",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := e.Cluster()
			if err != nil {
				return err
			}
			rotated, err := c.RotateRecordKeys(time.Now())
			for _, service := range slices.Sorted(maps.Keys(rotated)) {
				fmt.Fprintf(e.Out, "%s: key %d encrypts new records, older keys still decrypt\n", service, rotated[service])
			}
			return err
		},
	})
	return cmd
}
