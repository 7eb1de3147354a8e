package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

type revokeFlags struct {
	user, serial, machine, reason string
}

func newRevoke(e *session.Env) *cobra.Command {
	var f revokeFlags
	cmd := &cobra.Command{
		Use:   "revoke (--user NAME | --serial NUMBER | --machine NAME)",
		Short: "Revoke certificates and tokens before they expire",
		Long: `Revoke certificates and tokens before they expire, also on open connections. Services that can reach
machine-api reject them within one second. Each service stores the list of revocations on disk.

--user revokes what was issued to the user until now; credentials issued later are accepted. The
certificates of a machine are revoked automatically when it is deleted. "windlass get revocations"
lists revocations; "windlass delete revocation NAME" removes one, so that its credentials are accepted
again.`,
		Example: `  windlass auth revoke --user alice --reason "laptop stolen"
  windlass auth revoke --serial 3f:a0:11:9c
  windlass auth revoke --machine workers-x2v7q`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error { return revoke(cmd.Context(), e, c, f) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.user, "user", "", "user whose certificates and tokens are revoked")
	fs.StringVar(&f.serial, "serial", "", "serial number of one certificate, in hexadecimal")
	fs.StringVar(&f.machine, "machine", "", "machine whose certificates are revoked")
	fs.StringVar(&f.reason, "reason", "", "reason, recorded for other users")
	cmd.MarkFlagsOneRequired("user", "serial", "machine")
	cmd.MarkFlagsMutuallyExclusive("user", "serial", "machine")
	return cmd
}

func revoke(ctx context.Context, e *session.Env, c *client.Client, f revokeFlags) error {
	spec, prefix, err := revocation(ctx, e, c, f)
	if err != nil {
		return err
	}
	made, err := machinev1.NewRevocationServiceClient(c.Conn()).CreateRevocation(ctx, &machinev1.CreateRevocationRequest{
		Revocation: &machinev1.Revocation{Metadata: &metav1.ObjectMeta{GenerateName: prefix}, Spec: spec},
	})
	if err != nil {
		return err
	}
	// Certificates carry full seconds, so wait for the next one: what is issued after this command is accepted. The
	// wait is computed from the server's time, since the local clock may differ.
	if before := made.GetSpec().GetIssuedBefore().AsTime(); made.GetSpec().GetIssuedBefore() != nil {
		select {
		case <-time.After(before.Truncate(time.Second).Add(time.Second).Sub(before)):
		case <-ctx.Done():
		}
	}
	_, err = fmt.Fprintf(e.Out, "revocation.windlass.dev/%s created\n", made.GetMetadata().GetName())
	return err
}

// revocation returns what to revoke, and the prefix of the revocation's name.
func revocation(ctx context.Context, e *session.Env, c *client.Client, f revokeFlags) (spec *machinev1.RevocationSpec,
	prefix string, err error,
) {
	switch {
	case f.user != "":
		return &machinev1.RevocationSpec{User: f.user, Reason: f.reason}, "user-", nil
	case f.serial != "":
		n := strings.TrimLeft(strings.ToLower(strings.ReplaceAll(f.serial, ":", "")), "0")
		if n == "" {
			return nil, "", errors.New("--serial must not be zero")
		}
		return &machinev1.RevocationSpec{SerialNumber: n, Reason: f.reason}, "serial-", nil
	}
	namespace := e.Namespace
	if namespace == "" {
		namespace = "openshift-machine-api"
	}
	m, err := machinev1.NewMachineServiceClient(c.Conn()).GetMachine(ctx, &machinev1.GetMachineRequest{
		Namespace: namespace, Name: f.machine,
	})
	if err != nil {
		return nil, "", err
	}
	return &machinev1.RevocationSpec{MachineUid: m.GetMetadata().GetUid(), MachineName: f.machine, Reason: f.reason},
		"machine-", nil
}
