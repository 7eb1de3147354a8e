package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// NewEnv returns the command env.
func NewEnv(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print environment variables for accessing the cluster with other programs",
		Long: `Print shell commands that set the environment variables for accessing the cluster with other
programs, such as curl and grpcurl:

  eval "$(windlass env)"
  $CURL "$WINDLASS_URL/v1/machines"
  $GRPCURL "$WINDLASS_SERVER" list`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := e.Target.Resolve()
			if err != nil {
				return err
			}
			grpcurl := grpcurl(e)
			fmt.Fprintf(e.Out, "export %s=%q\nexport WINDLASS_URL=%q\nexport %s=%q\n", client.EnvServer,
				strings.TrimPrefix(t.URL(), "https://"), t.URL(), client.EnvCA, t.CA)
			if t.Token != "" {
				fmt.Fprintf(e.Out, "export %s=%q\n", client.EnvToken, t.Token)
				fmt.Fprintf(e.Out, "export CURL=%q\n", fmt.Sprintf("curl -sS --cacert %s -H Authorization:Bearer\\ %s", t.CA,
					t.Token))
				fmt.Fprintf(e.Out, "export GRPCURL=%q\n", fmt.Sprintf("%s -cacert %s -H authorization:Bearer\\ %s", grpcurl, t.CA,
					t.Token))
				return nil
			}
			fmt.Fprintf(e.Out, "export %s=%q\nexport %s=%q\n", client.EnvCert, t.Cert, client.EnvKey, t.Key)
			fmt.Fprintf(e.Out, "export CURL=%q\n", fmt.Sprintf("curl -sS --cacert %s --cert %s --key %s", t.CA, t.Cert, t.Key))
			fmt.Fprintf(e.Out, "export GRPCURL=%q\n", fmt.Sprintf("%s -cacert %s -cert %s -key %s", grpcurl, t.CA, t.Cert,
				t.Key))
			return nil
		},
	}
}

// grpcurl returns the path of the grpcurl that `make build` puts beside this executable, else "grpcurl".
func grpcurl(e *session.Env) string {
	beside := filepath.Join(filepath.Dir(e.Program), "grpcurl")
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside
	}
	return "grpcurl"
}
