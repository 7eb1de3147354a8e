package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCredentialsAreForWhatTheyName follows how docker and kubelet match them.
func TestCredentialsAreForWhatTheyName(t *testing.T) {
	creds, err := Credentials("kubernetes.io/dockerconfigjson", map[string][]byte{".dockerconfigjson": []byte(`{"auths":{
		"https://index.docker.io/v1/":{"username":"hub"},"example.com":{"username":"all"},
		"example.com/team":{"username":"team"},"example.com:5000":{"username":"port"}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ host, repository, want string }{
		{"index.docker.io", "library/x", "hub"},
		{"docker.io", "a/b", "hub"},
		{"example.com", "team/x", "team all"},
		{"example.com", "teamwork/x", "all"},
		{"example.com:5000", "team/x", "port"},
		{"other.example.com", "x", ""},
	} {
		var got []string
		for _, a := range matching(creds, tc.host, tc.repository) {
			c, err := a.Authorization()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c.Username)
		}
		if is := strings.Join(got, " "); is != tc.want {
			t.Errorf("%s/%s: %q, want %q", tc.host, tc.repository, is, tc.want)
		}
	}
	const secret = "hunter2"
	_, err = Credentials("kubernetes.io/dockerconfigjson", map[string][]byte{".dockerconfigjson": []byte(secret)})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("Credentials = %v, want an error without the text", err)
	}
}

func TestCredentialsOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := file("first", `{"auths":{"example.com":{"auth":"YTpi"}},"HttpHeaders":{"User-Agent":"x"}}`)
	second := file("second", `{"auths":{"example.com":{"username":"other"},"example.com/team":{"username":"c"}}}`)
	creds, err := readCredentials(first, second)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range matching(creds, "example.com", "team/x") {
		c, err := a.Authorization()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Username)
	}
	if is := strings.Join(got, " "); is != "c a" {
		t.Errorf("users %q, want the closest first, and of two files the first", is)
	}
	for content, want := range map[string]string{
		`{"auths":{},"credsStore":"desktop"}`:           "credsStore and credHelpers are not supported",
		`{"credHelpers":{"example.com":"gcloud"}}`:      "credsStore and credHelpers are not supported",
		`{"auths":{"example.com":{"auth":"hunter2"}}`:   "is not valid",
		`{"auths":{"example.com":{"auth":"hunter2"}}}}`: "is not valid",
	} {
		path := file("bad", content)
		_, err := readCredentials(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q and no secret", content, err, want)
		}
	}
}
