// Package webhook has the rules about the addresses of webhooks that users give and services call: https only, and
// only those that an administrator allowed. Package reach has the connections to them.
package webhook

import (
	"net/url"
	"slices"
	"strings"
)

// Allowed reports whether an address is one that allowed addresses allow: each allows the addresses with the same
// scheme, host and port whose path begins with its path.
func Allowed(text string, allowed []string) bool {
	return URLFault(text) == "" && slices.ContainsFunc(allowed, func(a string) bool { return within(text, a) })
}

// URLFault returns why an address cannot be that of a webhook; empty if it can.
func URLFault(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "is no URL"
	case u.Scheme != "https":
		return "must begin with https://"
	case u.Hostname() == "" || u.Opaque != "":
		return "must have a host"
	case u.User != nil:
		return "must not contain a user or password"
	case u.Fragment != "" || strings.Contains(u.EscapedPath(), "/.") || strings.Contains(u.EscapedPath(), "%"):
		return "must have a plain path without a fragment, escapes and segments that begin with a dot"
	}
	return ""
}

// Shown returns an address without its query, which may be what a server knows its callers by.
func Shown(text string) string {
	before, _, _ := strings.Cut(text, "?")
	return before
}

// within reports whether an address is one that another one allows. Both were checked.
func within(text, allowed string) bool {
	u, errURL := url.Parse(text)
	a, errAllowed := url.Parse(allowed)
	if errURL != nil || errAllowed != nil || !strings.EqualFold(u.Hostname(), a.Hostname()) || port(u) != port(a) {
		return false
	}
	path, prefix := u.Path, strings.TrimSuffix(a.Path, "/")
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return "443"
}
