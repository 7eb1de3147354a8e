// Package monitoring checks the files of deploy/monitoring against the source and docs/runbooks. It starts no cluster.
package monitoring

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	root = "../.."
	// directory has the files for Prometheus and Grafana.
	directory = root + "/deploy/monitoring"
)

var syntax = parser.NewParser(parser.Options{})

// alerts returns the alert rules.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join(directory, "alerts.yaml"), false, model.UTF8Validation, syntax,
		slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil || t.Failed() {
		t.FailNow()
	}
	var out []rulefmt.Rule
	for _, g := range groups.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) == 0 {
		t.Fatal("no rules")
	}
	return out
}

func TestEveryAlertSaysWhatAReaderNeeds(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range alerts(t) {
		if r.Alert == "" || seen[r.Alert] {
			t.Errorf("%q: a name is missing, or used twice", r.Alert)
		}
		seen[r.Alert] = true
		if r.For == 0 {
			t.Errorf("%s fires at once: it has no for", r.Alert)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has no summary, or no description", r.Alert)
		}
		if got, want := r.Annotations["runbook_url"], "docs/runbooks/"+r.Alert+".md"; got != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, got, want)
		}
	}
}

func TestEveryAlertHasARunbookAndEveryRunbookAnAlert(t *testing.T) {
	var want []string
	for _, r := range alerts(t) {
		want = append(want, r.Alert)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	index := read(t, root, "docs", "monitoring.md")
	var got []string
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		got = append(got, name)
		text := read(t, page)
		if !strings.HasPrefix(text, "# "+name+"\n") {
			t.Errorf("%s does not begin with its name", page)
		}
		for _, heading := range []string{"## Meaning", "## Risk", "## Diagnosis", "## Resolution", "## Do not"} {
			if !strings.Contains(text, "\n"+heading+"\n") {
				t.Errorf("%s has no section %q", page, heading)
			}
		}
		if !strings.Contains(index, "(runbooks/"+name+".md)") {
			t.Errorf("docs/monitoring.md does not link to %s", page)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("runbooks %v\nalerts %v", got, want)
	}
}

// link is a link to a file of the repository, or to a section of one.
var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#([^)]+))?\)`)

func TestLinksOfRunbooksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, page := range append(pages, filepath.Join(root, "docs", "monitoring.md")) {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			links++
			target := filepath.Join(filepath.Dir(page), found[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if found[2] != "" && !slices.Contains(sections(read(t, target)), found[2]) {
				t.Errorf("%s: %s has no section %s", page, found[1], found[2])
			}
		}
	}
	if links < len(pages) {
		t.Errorf("%d links", links)
	}
}

// punctuation is not part of such a name.
var punctuation = regexp.MustCompile(`[^a-z0-9 -]`)

// sections returns the names by which links lead to the headings of a page.
func sections(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			name := punctuation.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			out = append(out, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return out
}

// selectors returns what a query reads. Variables of Grafana are replaced by values first.
func selectors(query string) ([][]*labels.Matcher, parser.Expr, error) {
	for variable, value := range map[string]string{"$__rate_interval": "5m", "$__range": "1h"} {
		query = strings.ReplaceAll(query, variable, value)
	}
	e, err := syntax.ParseExpr(query)
	if err != nil {
		return nil, nil, err
	}
	return parser.ExtractSelectors(e), e, nil
}

// targetLabels are set by prometheus.yml, not by the programs.
var targetLabels = []string{"job", "instance", "cluster"}

// unknown returns what is in a query that no program exports: metrics, and labels of selectors and of aggregations.
func unknown(t *testing.T, exported map[string][]string, query string) []string {
	t.Helper()
	read, expr, err := selectors(query)
	if err != nil {
		return []string{err.Error()}
	}
	if len(read) == 0 {
		return []string{"no metric is read"}
	}
	var bad []string
	known := slices.Clone(targetLabels)
	for _, matchers := range read {
		name := ""
		for _, m := range matchers {
			if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
				name = m.Value
			}
		}
		has, ok := exported[name]
		if !ok {
			bad = append(bad, fmt.Sprintf("metric %q", name))
			continue
		}
		known = append(known, has...)
		for _, m := range matchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(has, m.Name) && !slices.Contains(targetLabels, m.Name) {
				bad = append(bad, fmt.Sprintf("label %q of %s", m.Name, name))
			}
		}
	}
	check := func(names []string) {
		for _, name := range names {
			if !slices.Contains(known, name) {
				bad = append(bad, fmt.Sprintf("label %q", name))
			}
		}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			check(n.Grouping)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				check(n.VectorMatching.MatchingLabels)
				check(n.VectorMatching.Include)
			}
		}
		return nil
	})
	return bad
}

// templated is a label in the text of an annotation.
var templated = regexp.MustCompile(`\$labels\.(\w+)`)

func TestAlertsReadOnlyWhatIsExported(t *testing.T) {
	exported := exported(t)
	for _, r := range alerts(t) {
		for _, what := range unknown(t, exported, r.Expr) {
			t.Errorf("%s: no program exports %s", r.Alert, what)
		}
		read, _, err := selectors(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		known := slices.Clone(targetLabels)
		for _, matchers := range read {
			for _, m := range matchers {
				if m.Name == model.MetricNameLabel {
					known = append(known, exported[m.Value]...)
				}
			}
		}
		for _, text := range r.Annotations {
			for _, found := range templated.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(known, found[1]) {
					t.Errorf("%s: its metrics have no label %s", r.Alert, found[1])
				}
			}
		}
	}
}

func TestWhatIsNotExportedIsFound(t *testing.T) {
	exported := map[string][]string{"up": nil, "windlass_pods": {"namespace", "phase"}}
	for query, want := range map[string]int{
		`up{job="gateway"} == 0`:                                0,
		`sum by (namespace) (windlass_pods{phase="Running"})`:   0,
		`windlass_pod`:                                          1,
		`windlass_pods{node="a"}`:                               1,
		`max without (instance, machine) (windlass_pods)`:       1,
		`windlass_pods and on (node) up`:                        1,
		`rate(windlass_pods[$__rate_interval]) / on () vector(`: 1,
		`vector(1)`: 1,
	} {
		if got := unknown(t, exported, query); len(got) != want {
			t.Errorf("%s: %v, want %d", query, got, want)
		}
	}
}

// documented is the name of a metric in a page, without labels.
var documented = regexp.MustCompile("`((?:windlass|cluster)_[a-z_]+)`")

func TestThePageNamesOnlyMetricsThatAreExported(t *testing.T) {
	exported := exported(t)
	found := documented.FindAllStringSubmatch(read(t, root, "docs", "monitoring.md"), -1)
	if len(found) == 0 {
		t.Error("the page names no metric")
	}
	for _, name := range found {
		if _, ok := exported[name[1]]; !ok {
			t.Errorf("no program exports %s", name[1])
		}
	}
}

// dashboard is the part of a dashboard of Grafana that is checked.
type dashboard struct {
	Title         string  `json:"title"`
	UID           string  `json:"uid"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int         `json:"id"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Type        string      `json:"type"`
	Datasource  *datasource `json:"datasource"`
	GridPos     struct {
		H, W, X, Y int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr       string      `json:"expr"`
		RefID      string      `json:"refId"`
		Datasource *datasource `json:"datasource"`
	} `json:"targets"`
}

type datasource struct{ Type, UID string }

// address is a host name or an IP address with a port, or an IP address.
var address = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|[a-z0-9.-]+:\d{2,5}\b`)

func TestDashboards(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(directory, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	exported := exported(t)
	uids := map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		raw := read(t, file)
		var d dashboard
		if err := json.Unmarshal([]byte(raw), &d); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d.Title == "" || d.UID == "" || uids[d.UID] || d.SchemaVersion < 36 || len(d.Panels) == 0 {
			t.Errorf("%s: title %q, uid %q, schemaVersion %d, %d panels", name, d.Title, d.UID, d.SchemaVersion,
				len(d.Panels))
		}
		uids[d.UID] = true
		if len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" ||
			d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Query != "prometheus" {
			t.Errorf("%s: the first variable is not the data source", name)
		}
		if at := address.FindString(raw); at != "" {
			t.Errorf("%s: %q is an address of one cluster", name, at)
		}
		checkPanels(t, name, d.Panels, exported)
	}
}

func checkPanels(t *testing.T, file string, panels []panel, exported map[string][]string) {
	t.Helper()
	ids := map[int]bool{}
	for _, p := range panels {
		what := file + ", panel " + p.Title
		if p.ID == 0 || ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.H == 0 ||
			p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: id %d, position %+v", what, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		if p.Datasource == nil || *p.Datasource != (datasource{"prometheus", "${datasource}"}) {
			t.Errorf("%s: data source %v", what, p.Datasource)
		}
		if p.FieldConfig.Defaults.Unit == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: it has no unit, no description, or no query", what)
		}
		for _, q := range p.Targets {
			if q.RefID == "" || q.Datasource == nil || q.Datasource.UID != "${datasource}" {
				t.Errorf("%s: query %q, data source %v", what, q.RefID, q.Datasource)
			}
			if strings.Count(q.Expr, `cluster=~"$cluster"`) == 0 {
				t.Errorf("%s: a query reads all clusters: %s", what, q.Expr)
			}
			for _, bad := range unknown(t, exported, q.Expr) {
				t.Errorf("%s: no program exports %s", what, bad)
			}
		}
	}
}

func TestEveryServiceIsScrapedAtItsPort(t *testing.T) {
	var config struct {
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string            `json:"job_name"`
			Scheme        string            `json:"scheme"`
			TLSConfig     map[string]string `json:"tls_config"`
			StaticConfigs []struct {
				Targets []string          `json:"targets"`
				Labels  map[string]string `json:"labels"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, directory, "prometheus.yml")), &config); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.RuleFiles, []string{"alerts.yaml"}) {
		t.Errorf("rule_files: %v", config.RuleFiles)
	}
	var jobs, want []string
	for _, c := range config.ScrapeConfigs {
		if c.Scheme != "https" || len(c.TLSConfig) != 3 {
			t.Errorf("%s: scheme %q, tls_config %v", c.JobName, c.Scheme, c.TLSConfig)
		}
		for _, s := range c.StaticConfigs {
			job := s.Labels["job"]
			jobs = append(jobs, job)
			for _, target := range s.Targets {
				if port := fmt.Sprintf(":%d", topology.Port(job)+topology.MetricsStep); !strings.HasSuffix(target, port) {
					t.Errorf("%s is scraped at %s, want port %s", job, target, port)
				}
			}
		}
	}
	for _, s := range topology.AllServices() {
		want = append(want, s.Name)
	}
	slices.Sort(jobs)
	slices.Sort(want)
	if !slices.Equal(jobs, want) {
		t.Errorf("jobs %v\nwant %v", jobs, want)
	}
	down := alert(t, "WindlassTargetDown").Expr
	if expr := `up{job=~"` + strings.Join(want, "|") + `"} == 0`; down != expr {
		t.Errorf("WindlassTargetDown reads %s\nwant %s", down, expr)
	}
}

func alert(t *testing.T, name string) rulefmt.Rule {
	t.Helper()
	for _, r := range alerts(t) {
		if r.Alert == name {
			return r
		}
	}
	t.Fatalf("no alert %s", name)
	return rulefmt.Rule{}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
