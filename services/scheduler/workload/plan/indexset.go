package plan

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// indexSet is a set of indexes as ranges: in order, none of them empty, and none next to another. Its size does not
// depend on how many indexes a range has.
type indexSet []indexRange

type indexRange struct{ first, last int }

// at returns the position of the first range that does not end before an index.
func (x indexSet) at(n int) int {
	return sort.Search(len(x), func(i int) bool { return x[i].last >= n })
}

func (x indexSet) has(n int) bool {
	i := x.at(n)
	return i < len(x) && x[i].first <= n
}

func (x *indexSet) add(n int) {
	if x.has(n) {
		return
	}
	set, i := *x, x.at(n)
	before, after := i > 0 && set[i-1].last == n-1, i < len(set) && set[i].first == n+1
	switch {
	case before && after:
		set[i-1].last = set[i].last
		set = slices.Delete(set, i, i+1)
	case before:
		set[i-1].last = n
	case after:
		set[i].first = n
	default:
		set = slices.Insert(set, i, indexRange{n, n})
	}
	*x = set
}

// size returns how many indexes the set has.
func (x indexSet) size() (n int) {
	for _, r := range x {
		n += r.last - r.first + 1
	}
	return n
}

// within returns how many indexes of the set are also in another.
func (x indexSet) within(other indexSet) (n int) {
	for i, k := 0, 0; i < len(x) && k < len(other); {
		first, last := max(x[i].first, other[k].first), min(x[i].last, other[k].last)
		n += max(0, last-first+1)
		if x[i].last < other[k].last {
			i++
		} else {
			k++
		}
	}
	return n
}

// String returns the set as text, such as "0-2,5".
func (x indexSet) String() string {
	out := make([]string, 0, len(x))
	for _, r := range x {
		switch r.last {
		case r.first:
			out = append(out, strconv.Itoa(r.first))
		default:
			out = append(out, fmt.Sprintf("%d-%d", r.first, r.last))
		}
	}
	return strings.Join(out, ",")
}

// parseIndexes reads indexes below a number: ranges such as "0-2,5", in ascending order and apart. On an error it
// returns what was before it.
func parseIndexes(text string, below int) (indexSet, error) {
	var out indexSet
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, is := strings.Cut(part, "-")
		if !is {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		switch n := len(out); {
		case err != nil || err2 != nil || first < 0 || strings.HasPrefix(from, "+") || strings.HasPrefix(to, "+"):
			return out, fmt.Errorf("%q is neither an index nor a range of indexes", part)
		case is && first >= last:
			return out, fmt.Errorf("%q is no range: its end must be greater than its begin", part)
		case last >= below:
			return out, fmt.Errorf("%q is beyond the last index, which is %d", part, below-1)
		case n > 0 && first <= out[n-1].last:
			return out, fmt.Errorf("%q must be greater than what is before it", part)
		case n > 0 && first == out[n-1].last+1:
			out[n-1].last = last
		default:
			out = append(out, indexRange{first, last})
		}
	}
	return out, nil
}

// CountIndexes returns how many indexes a text such as "0-2,5" has, all of which are below a number. The error says
// what is wrong with it.
func CountIndexes(text string, below int) (int, error) {
	set, err := parseIndexes(text, below)
	if err == nil && len(set) == 0 {
		err = errors.New("must have an index")
	}
	return set.size(), err
}
