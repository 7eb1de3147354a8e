// Package promql evaluates the queries of update risks: by the engine of Prometheus over samples of the cluster's own
// metrics, or by a Prometheus server.
package promql

import (
	"errors"
	"fmt"
	regex "regexp/syntax"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// Limits of a query. The largest of the public graphs has 766 bytes, texts of 79 bytes, and looks back an hour. The
// engine limits samples and time itself, but it takes memory for all steps of a subquery before it counts, and neither
// counts the bytes of labels nor interrupts the search for a regular expression.
const (
	maxText      = 4 << 10
	maxLiteral   = 512   // bytes of a text in the query
	maxPatterns  = 2_000 // instructions of all texts, as if each were a regular expression
	maxSelectors = 32
	maxBack      = 24 * time.Hour
	maxSteps     = 11_000 // of a subquery, times those around it: as many as Prometheus allows in a range
	maxTimes     = 4      // by which functions of labels may lengthen a text
	maxAdded     = 64     // bytes that such a function may add
	maxReplaced  = 100    // instructions of a pattern of label_replace, which may search what it made
	// maxMatched is how many instructions the patterns of all selectors have that are known at once: each series is
	// searched for each.
	maxMatched = 10_000
)

// noStep is the step of a subquery that names none: the interval of evaluation of Prometheus.
const noStep = time.Minute

var syntax = parser.NewParser(parser.Options{})

// query is a query that is safe to evaluate here.
type query struct {
	text      string
	selectors [][]*labels.Matcher // of the series that it reads
	back      time.Duration       // how far back the samples are that it reads; 0 if it reads only the latest
	patterns  int                 // instructions of the patterns of its selectors
}

// read parses a query and returns an error if it is none, or beyond the limits.
func read(text string) (*query, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("the query has %d bytes, more than %d", len(text), maxText)
	}
	if err := checkTexts(text); err != nil { // the parser compiles them
		return nil, err
	}
	expr, err := syntax.ParseExpr(text)
	if err != nil {
		return nil, fmt.Errorf("the query is not valid: %w", err)
	}
	q := &query{text: text, selectors: parser.ExtractSelectors(expr)}
	if len(q.selectors) > maxSelectors {
		return nil, fmt.Errorf("the query has %d selectors, more than %d", len(q.selectors), maxSelectors)
	}
	for _, selector := range q.selectors {
		for _, m := range selector {
			if m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp {
				q.patterns += sizeOf(m.Value)
			}
		}
	}
	var wrong error
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		if n != nil && wrong == nil {
			wrong = q.limit(append(path[:len(path):len(path)], n))
		}
		return wrong
	})
	return q, wrong
}

// checkTexts checks the texts of a query before anything is made of them.
func checkTexts(query string) error {
	var item parser.Item
	size := 0
	for lexer := parser.Lex(query); ; {
		lexer.NextItem(&item)
		switch item.Typ {
		case parser.EOF, parser.ERROR: // the parser says what is wrong
			return nil
		case parser.STRING:
		default:
			continue
		}
		if len(item.Val) > maxLiteral {
			return fmt.Errorf("the query has a text of %d bytes, more than %d", len(item.Val), maxLiteral)
		}
		text, err := strutil.Unquote(item.Val)
		if err != nil {
			continue // as above
		}
		if size += sizeOf(text); size > maxPatterns {
			return fmt.Errorf("the query has texts that are too large as regular expressions: more than %d instructions",
				maxPatterns)
		}
	}
}

// sizeOf returns the number of instructions of a text as a regular expression; 0 if it is none.
func sizeOf(text string) int {
	pattern, err := regex.Parse(text, regex.Perl)
	if err != nil {
		return 0
	}
	return instructions(pattern)
}

// instructions returns about how many instructions a regular expression compiles to; maxPatterns+1 for any more.
func instructions(re *regex.Regexp) int {
	n := 1
	if re.Op == regex.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == regex.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxPatterns+1)
}

// limit checks a part of a query, which is at the end of the path that leads to it, and notes how far it looks back.
func (q *query) limit(path []parser.Node) error {
	var back time.Duration
	steps, times := int64(1), 1
	for _, n := range path {
		switch n := n.(type) {
		case *parser.SubqueryExpr:
			if n.Timestamp != nil || n.StartOrEnd != 0 {
				return errors.New("the query has the modifier @, which is not supported")
			}
			if n.OriginalOffset < 0 {
				return errors.New("the query has a negative offset, which is not supported")
			}
			step := n.Step
			if step == 0 {
				step = noStep
			}
			back += min(n.Range, maxBack+1) + min(n.OriginalOffset, maxBack+1) // the sum of larger ones may overflow
			steps *= min(int64(n.Range/step), maxSteps) + 1
		case *parser.MatrixSelector:
			back += n.Range
		case *parser.VectorSelector:
			if n.Timestamp != nil || n.StartOrEnd != 0 {
				return errors.New("the query has the modifier @, which is not supported")
			}
			if n.OriginalOffset < 0 {
				return errors.New("the query has a negative offset, which is not supported")
			}
			back += n.OriginalOffset
		case *parser.Call:
			if err := checkLabels(n); err != nil {
				return err
			}
			times *= lengthens(n)
		case *parser.AggregateExpr:
			if n.Op == parser.COUNT_VALUES && steps > 1 {
				return errors.New(
					"the query has count_values in a subquery, which is not supported: each step may bring new series")
			}
		}
		switch {
		case back > maxBack:
			return fmt.Errorf("the query looks back %s, more than %s", back, maxBack)
		case steps > maxSteps:
			return fmt.Errorf("the query has subqueries with more than %d steps", maxSteps)
		case times > maxTimes:
			return fmt.Errorf("the query may lengthen a label %d times, more than %d", times, maxTimes)
		}
	}
	q.back = max(q.back, back)
	return nil
}

// checkLabels checks the texts of a function of labels.
func checkLabels(call *parser.Call) error {
	added, pattern := 2, -1
	switch call.Func.Name {
	case "label_join":
	case "label_replace":
		pattern = 4
	default:
		return nil
	}
	if s, ok := bare(call.Args[added]).(*parser.StringLiteral); ok && len(s.Val) > maxAdded {
		return fmt.Errorf("the query adds %d bytes to a label, more than %d", len(s.Val), maxAdded)
	}
	if pattern < 0 {
		return nil
	}
	if s, ok := bare(call.Args[pattern]).(*parser.StringLiteral); ok && sizeOf(s.Val) > maxReplaced {
		return fmt.Errorf("the query has a pattern of label_replace with more than %d instructions", maxReplaced)
	}
	return nil
}

// bare returns an expression without the parentheses around it.
func bare(e parser.Expr) parser.Expr {
	for {
		p, ok := e.(*parser.ParenExpr)
		if !ok {
			return e
		}
		e = p.Expr
	}
}

// lengthens returns how many times as long a text a function may make of that of a label.
func lengthens(call *parser.Call) int {
	switch call.Func.Name {
	case "label_join":
		return max(1, len(call.Args)-3)
	case "label_replace":
		return max(1, strings.Count(call.Args[2].String(), "$"))
	}
	return 1
}

// reads reports whether a query reads a series.
func (q *query) reads(series labels.Labels) bool {
	for _, selector := range q.selectors {
		if matches(selector, series) {
			return true
		}
	}
	return false
}

func matches(selector []*labels.Matcher, series labels.Labels) bool {
	for _, m := range selector {
		if !m.Matches(series.Get(m.Name)) {
			return false
		}
	}
	return true
}
