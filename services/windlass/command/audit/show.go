package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// exitMissing is the exit code of `windlass audit` if records are missing.
const exitMissing = 1

type showFlags struct {
	since            time.Duration
	sinceTime, until string
	logs, hosts      []string
	user, output     string
	follow           bool
}

const showHelp = `Show the records of the audit logs of all hosts, merged by their times, with the host of each. The records
of one log keep their order; the clocks of the hosts decide only about the order of records of different
hosts. "--log" selects the logs: audit has the changes, reads the reads of logs, refusals the refused calls.

A host or a log whose records are missing is named on the standard error, and the exit code is then 1.

With "-o raw" the records are printed as they are in the logs, those of all logs merged. With "-o json" each
comes with its host, its log and its line, and those of one log can be verified:

  windlass audit --host h1 -o json | jq -r 'select(.log == "machine-api/audit.log") | .line' > audit.log
  windlass audit verify audit.log`

func addShow(cmd *cobra.Command, e *session.Env) {
	var f showFlags
	cmd.Args = cobra.NoArgs
	cmd.Long = showHelp
	cmd.Example = `  windlass audit --since 1h
  windlass audit --user ann --log audit --log refusals
  windlass audit --host h1 --follow
  windlass audit --since-time 2026-11-26T14:00:00Z --until-time 2026-11-26T15:00:00Z -o json`
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := f.request(time.Now())
		if err != nil {
			return err
		}
		return e.WithClient(func(c *client.Client) error { return show(cmd.Context(), e, c, q, f.output) })
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.since, "since", 0, "show only records newer than a duration such as 5s or 2m; 0 shows all")
	fs.StringVar(&f.sinceTime, "since-time", "", "show only records newer than a time such as 2026-11-26T14:00:00Z")
	fs.StringVar(&f.until, "until-time", "", "show only records older than a time such as 2026-11-26T14:00:00Z")
	fs.StringArrayVar(&f.logs, "log", []string{"audit"}, "log to show: audit, reads or refusals; can be repeated")
	fs.StringArrayVar(&f.hosts, "host", nil, "host whose records are shown; can be repeated (default: all)")
	fs.StringVar(&f.user, "user", "", "show only records of this user")
	fs.BoolVarP(&f.follow, "follow", "f", false, "continue with new records")
	fs.StringVarP(&f.output, "output", "o", "", "output format: json or raw")
	cmd.MarkFlagsMutuallyExclusive("since", "since-time")
	cmd.MarkFlagsMutuallyExclusive("follow", "until-time")
}

// request returns what to ask for at a time.
func (f showFlags) request(now time.Time) (*auditv1.ReadAuditLogsRequest, error) {
	if !slices.Contains([]string{"", "json", "raw"}, f.output) {
		return nil, fmt.Errorf("--output %q: must be json or raw", f.output)
	}
	q := &auditv1.ReadAuditLogsRequest{Logs: f.logs, Hosts: f.hosts, User: f.user, Follow: f.follow}
	if f.since < 0 {
		return nil, fmt.Errorf("--since %s: must not be negative", f.since)
	}
	if f.since > 0 {
		q.SinceTime = timestamppb.New(now.Add(-f.since))
	}
	for _, t := range []struct {
		flag, text string
		field      **timestamppb.Timestamp
	}{{"since-time", f.sinceTime, &q.SinceTime}, {"until-time", f.until, &q.UntilTime}} {
		if t.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, t.text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", t.flag, err)
		}
		*t.field = timestamppb.New(at)
	}
	for _, log := range f.logs {
		if !slices.Contains([]string{"audit", "reads", "refusals"}, log) {
			return nil, fmt.Errorf("--log %q: must be audit, reads or refusals", log)
		}
	}
	return q, nil
}

// show prints what the gateway sends, and on the standard error what is missing.
func show(ctx context.Context, e *session.Env, c *client.Client, q *auditv1.ReadAuditLogsRequest, output string) error {
	stream, err := auditv1.NewAuditServiceClient(c.Conn()).ReadAuditLogs(ctx, q)
	if err != nil {
		return err
	}
	missing := false
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) || ctx.Err() != nil && q.GetFollow() {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("records are missing from here on: %w", err)
		}
		for _, r := range m.GetRecords() {
			if err := printRecord(e.Out, r, output); err != nil {
				return err
			}
		}
		for _, lack := range m.GetMissing() {
			missing = true
			fmt.Fprintln(e.Err, "error:", lackText(lack))
		}
	}
	if missing {
		return failure.Exit{Code: exitMissing}
	}
	return nil
}

func lackText(lack *auditv1.MissingAuditLog) string {
	text := "records are missing: " + lack.GetReason()
	if lack.GetHost() != "" {
		text = "host " + lack.GetHost() + ": " + text
	}
	return printable(text)
}

// printable quotes a text that could be taken for another line, or moves the cursor: callers choose names.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func printRecord(to io.Writer, r *auditv1.AuditRecord, output string) error {
	switch output {
	case "raw":
		_, err := fmt.Fprintf(to, "%s\n", r.GetLine())
		return err
	case "json":
		text, err := json.Marshal(struct {
			Host   string          `json:"host,omitempty"`
			Log    string          `json:"log"`
			Record json.RawMessage `json:"record"`
			Line   string          `json:"line"`
		}{r.GetHost(), r.GetLog(), r.GetLine(), string(r.GetLine())})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(to, "%s\n", text)
		return err
	}
	var is audit.Record
	if err := json.Unmarshal(r.GetLine(), &is); err != nil {
		return fmt.Errorf("%s of host %q: %w", r.GetLog(), r.GetHost(), err)
	}
	program, _, _ := strings.Cut(r.GetLog(), "/")
	_, err := fmt.Fprintf(to, "%s  %-10s  %-19s  %-10s  %-24s  %s\n", is.Time.UTC().Format("2006-01-02T15:04:05.000Z"),
		cmp.Or(r.GetHost(), "-"), program, cmp.Or(is.Stage, is.Event, is.Decision), printable(cmp.Or(is.User, "-")), what(is))
	return err
}

// what says in a few words what a record is about.
func what(r audit.Record) string {
	var words []string
	add := func(w string) {
		if w != "" {
			words = append(words, printable(w))
		}
	}
	add(r.Verb)
	if r.Resource != "" {
		object := r.Resource
		if r.Group != "" {
			object += "." + r.Group
		}
		add(object)
	}
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	add(name)
	add(r.Detail)
	add(r.Code)
	add(r.Reason)
	if r.Count > 0 {
		add(fmt.Sprintf("(%d times)", r.Count))
	}
	return strings.Join(words, " ")
}
