package promql

import (
	"strings"
	"testing"
	"time"
)

func TestQueriesAreReadWithWhatTheyLookBackAt(t *testing.T) {
	for text, back := range map[string]time.Duration{
		`up`:                                            0,
		`group(up == 0) or 0 * group(up)`:               0,
		`max_over_time(up[1h])`:                         time.Hour,
		`max_over_time(up[1h] offset 30m)`:              90 * time.Minute,
		`up offset 2h or max_over_time(x[1h])`:          2 * time.Hour,
		`max_over_time(rate(x[10m])[1h:1m])`:            70 * time.Minute,
		`label_replace(up, "a", "$1$1", "job", "(.*)")`: 0,
	} {
		q, err := read(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if q.back != back {
			t.Errorf("%s looks back %s, want %s", text, q.back, back)
		}
	}
}

func TestQueriesThatCouldHarmAreRefused(t *testing.T) {
	grow := `label_join(up, "a", "", "a", "a", "a")`
	for text, want := range map[string]string{
		strings.Repeat("(", 3000) + "up" + strings.Repeat(")", 3000):             "has 6002 bytes, more than 4096",
		`count({method=~"` + strings.Repeat(".?", 300) + `"})`:                   "a text of 602 bytes, more than 512",
		`count({method=~"(?:(?:` + strings.Repeat(".?", 200) + `){1000})[BC]"})`: "more than 2000 instructions",
		`count({a=~"(?:a{30}){30}",b!~"(?:a{30}){30}",c=~"(?:a{30}){30}"})`:      "more than 2000 instructions",
		`label_replace(up, "a", "b", "job", "(?:(?:.?.?.?){100}){9}B")`:          "more than 2000 instructions",
		"count({a=~`(?:(?:.?.?.?){100}){9}`})":                                   "more than 2000 instructions",
		"up" + strings.Repeat(" or up", 32):                                      "has 33 selectors, more than 32",
		`count_over_time(count_values("v", vector(time()))[10s:1ms])`:            "count_values in a subquery",
		`label_replace(up, "a", "b", "job", "(?:.*A?){30}[BC]")`:                 "a pattern of label_replace",
		`label_replace(up, "a", "` + strings.Repeat("A", 65) + `", "", "")`:      "adds 65 bytes to a label",
		`label_replace(up, "a", (("` + strings.Repeat("A", 65) + `")), "", "")`:  "adds 65 bytes to a label",
		`label_join(up, "a", "` + strings.Repeat("A", 65) + `", "job", "job")`:   "adds 65 bytes to a label",
		`sum(`:                                 "not valid",
		`count_over_time(vector(1)[100y:1ms])`: "looks back",
		`count_over_time(vector(1)[200y:1ms] offset 200y)`: "looks back",
		`count_over_time(vector(1)[1h:1ms])`:               "more than 11000 steps",
		`sum_over_time(sum_over_time(up[10m:1s])[10m:1s])`: "more than 11000 steps",
		`max_over_time(up[25h])`:                           "looks back 25h0m0s, more than 24h0m0s",
		`up offset 25h`:                                    "looks back",
		`up offset -5m`:                                    "negative offset",
		`max_over_time(up[5m:1m] offset -5m)`:              "negative offset",
		`up @ 0`:                                           "modifier @",
		`max_over_time(up[5m:1m] @ start())`:               "modifier @",
		strings.Replace(grow, "up", grow, 1):               "lengthen a label 9 times",
		`label_replace(up, "a", "` + strings.Repeat("$1", 5) + `", "job", "(.*)")`: "lengthen a label 5 times",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error = %v, want %q", text, err, want)
		}
	}
}

// FuzzEvaluate evaluates any query over two series: it must return within the limits.
func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{
		`up`, `max_over_time(up[1h])`, `label_join(up, "a", "", "a", "job")`, `count_over_time(vector(1)[1h:1m])`,
		`histogram_quantile(0.9, x_bucket)`, `topk(1, up) or absent(y)`, `"text"`, `1`,
		`sum by (job) (up{job=~"a.*"}) > bool 0`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e := NewEngine([]Target{{Job: "a", Instance: "b:1", Read: serves("x 1\nx_bucket{le=\"1\"} 2\n")}}, quiet(t))
		_, _ = e.Evaluate(t.Context(), text)
	})
}
