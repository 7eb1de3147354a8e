package service

import (
	"strings"
	"testing"
)

func TestTheLimitOfDisksIsANumberOfOneOrMore(t *testing.T) {
	for value, want := range map[string]int{"": 0, "1": 1, "40": 40} {
		if n, err := parseMaxDisks(value); n != want || err != nil {
			t.Errorf("parseMaxDisks(%q) = %d, %v, want %d", value, n, err, want)
		}
	}
	for _, value := range []string{"0", "-1", "many", "1.5", " "} {
		if _, err := parseMaxDisks(value); err == nil || !strings.Contains(err.Error(), maxDisksVariable) {
			t.Errorf("parseMaxDisks(%q) = %v, want an error that names the variable", value, err)
		}
	}
}
