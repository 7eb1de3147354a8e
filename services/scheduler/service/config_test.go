package service

import (
	"io"
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

func TestTheRangeOfServicesIsOneOfLoopbackAddresses(t *testing.T) {
	given := func(flags ...string) (options, error) {
		_, own, err := parse(append([]string{"--peer", "eviction-controller=localhost:1"}, flags...), io.Discard)
		return own, err
	}
	if own, err := given(); own.services.String() != "127.224.0.0/20" || err != nil {
		t.Errorf("without the flag the range is %v, %v", own.services, err)
	}
	if own, err := given("--service-range", "127.225.17.1/20"); own.services.String() != "127.225.16.0/20" || err != nil {
		t.Errorf("the range is %v, %v", own.services, err)
	}
	for _, value := range []string{"", "127.224.0.0", "10.0.0.0/16", "::1/128", "127.224.0.0/29", "127.0.0.0/7"} {
		if _, err := given("--service-range", value); err == nil || !strings.Contains(err.Error(), "--service-range") {
			t.Errorf("range %q: %v, want an error that names the flag", value, err)
		}
	}
}
