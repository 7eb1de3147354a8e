// Package provider makes the command provider, for authors of infrastructure providers.
package provider

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/conformance"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// New returns the command provider.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Check infrastructure providers"}
	cmd.AddCommand(newVerify(e))
	return cmd
}

func newVerify(e *session.Env) *cobra.Command {
	var spec, service string
	var plain bool
	var limit time.Duration
	var fence int64
	cmd := &cobra.Command{
		Use:   "verify ADDRESS --spec FILE",
		Short: "Check that a provider keeps the rules of windlass.provider.v1",
		Long: `Check that the provider at ADDRESS (host:port) keeps the rules of windlass.provider.v1.

The check makes three instances from the provider spec in FILE, deletes them again, and reports each rule.
The names of their machines begin with "verify-". It exits with 1 if a rule was broken or could not be checked.
An interrupted check deletes what it has made.`,
		Example: `  windlass provider verify 192.0.2.10:7110 --service provider-example --spec small.yaml
  windlass provider verify 127.0.0.1:7110 --plaintext --spec small.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if spec == "" {
				return fmt.Errorf("--spec is required: the provider spec of the instances that are made")
			}
			value, err := readSpec(e.In, spec)
			if err != nil {
				return fmt.Errorf("--spec %s: %w", spec, err)
			}
			creds := insecure.NewCredentials()
			if !plain {
				if creds, err = credentialsOf(e, service); err != nil {
					return err
				}
			}
			conn, err := grpc.NewClient("passthrough:///"+args[0], grpc.WithTransportCredentials(creds),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(dial.MaxMessage)))
			if err != nil {
				return err
			}
			defer conn.Close()
			return verify(cmd, e.Out, conn, conformance.Options{Spec: value, Limit: limit, Fence: fence})
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec, "spec", "", "file with the provider spec, as YAML or JSON; - for standard input")
	f.StringVar(&service, "service", "provider-local", "name of the provider, which its certificate must have")
	f.BoolVar(&plain, "plaintext", false, "connect without TLS")
	f.Int64Var(&fence, "fence", 0, "the highest fence that the provider has seen (default: that of its instances)")
	f.DurationVar(&limit, "timeout", 2*time.Minute, "for an instance to be made, and for one to be gone")
	return cmd
}

// readSpec reads the value of a provider spec.
func readSpec(in io.Reader, file string) (*structpb.Struct, error) {
	var raw []byte
	var err error
	if file == "-" {
		raw, err = io.ReadAll(in)
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	var value map[string]any
	if err := yaml.UnmarshalStrict(raw, &value); err != nil {
		return nil, err
	}
	if kind, _ := value["kind"].(string); kind == "" {
		return nil, fmt.Errorf("kind: must be the kind of a provider spec, such as LocalMachineProviderSpec")
	}
	return structpb.NewStruct(value)
}

// credentialsOf returns the credentials of the selected cluster's user for a provider with the certificate of a
// service.
func credentialsOf(e *session.Env, service string) (credentials.TransportCredentials, error) {
	t, err := e.Target.Resolve()
	if err != nil {
		return nil, err
	}
	if t.Cert == "" {
		return nil,
			fmt.Errorf("a provider accepts client certificates only, not tokens: use --cert and --key, or --plaintext")
	}
	cfg, err := identity.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}.ClientTLS("")
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(service))), nil
}

// verify checks a provider and prints each result as it comes.
func verify(cmd *cobra.Command, out io.Writer, conn grpc.ClientConnInterface, o conformance.Options) error {
	if err := answers(cmd.Context(), conn); err != nil {
		return err
	}
	w := table.New(out)
	// Each result is printed at once, so the columns have their widths from the beginning.
	longest := 0
	for _, name := range conformance.Names() {
		longest = max(longest, len(name))
	}
	if err := w.Print([]string{fmt.Sprintf("%-*s", longest, "CHECK"), "RESULT ", "TIME   ", "DETAIL"}); err != nil {
		return err
	}
	broken, skipped := 0, 0
	var printing error
	o.Done = func(r conformance.Result) {
		result, detail := "kept", r.Rule
		switch {
		case r.Err != nil:
			broken++
			result, detail = "BROKEN", failure.Describe(r.Err)+"; the rule: "+r.Rule
		case r.Skipped != "":
			skipped++
			result, detail = "skipped", r.Skipped
		}
		if err := w.Print([]string{r.Name, result, r.Took.Round(time.Millisecond).String(), detail}); err != nil {
			printing = err
		}
	}
	n := len(conformance.Run(cmd.Context(), conn, o))
	if printing != nil {
		return printing
	}
	fmt.Fprintf(out, "\n%d rules: %d kept, %d broken, %d not checked\n", n, n-broken-skipped, broken, skipped)
	if cmd.Context().Err() != nil {
		return cmd.Context().Err()
	}
	if broken > 0 || skipped > 0 {
		return failure.Exit{Code: 1}
	}
	return nil
}

// answerLimit is how long a provider may take to answer at all, as machine-api has it for one call.
const answerLimit = 30 * time.Second

// answers returns an error if no provider answers: then no rule is broken, and none can be checked.
func answers(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := providerv1.NewProviderServiceClient(conn).GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{})
	switch s := status.Convert(err); s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("the provider does not answer: %s", s.Message())
	}
	return nil
}
