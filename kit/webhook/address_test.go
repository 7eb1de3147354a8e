package webhook

import (
	"strings"
	"testing"
)

func TestAnAddressIsOneThatAnAdministratorAllowed(t *testing.T) {
	allowed := []string{"https://a.example.com/hooks", "https://b.example.com:8443"}
	for text, want := range map[string]bool{
		"https://a.example.com/hooks":           true,
		"https://A.example.com:443/hooks/x?y=1": true,
		"https://b.example.com:8443/anything":   true,
		"https://a.example.com/hooksx":          false,
		"https://a.example.com/":                false,
		"https://a.example.com:8443/hooks":      false,
		"https://a.example.com.evil.org/hooks":  false,
		"https://a.example.com/hooks/../admin":  false,
	} {
		if got := Allowed(text, allowed); got != want {
			t.Errorf("%s: allowed %t, want %t", text, got, want)
		}
	}
}

func TestWhatIsWrongWithAnAddress(t *testing.T) {
	for text, want := range map[string]string{
		"https://a.example.com/hooks":          "",
		"https://a.example.com/hooks/../admin": "plain path",
		"https://a.example.com/hooks/%2e%2e/x": "plain path",
		"http://a.example.com/hooks":           "https://",
		"https://u:p@a.example.com/hooks":      "user or password",
		"https:///hooks":                       "host",
		"https:a.example.com":                  "host",
		"://":                                  "no URL",
	} {
		if why := URLFault(text); (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", text, why, want)
		}
	}
}
