package users_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/services/etcd-member/users"
)

func TestLoad(t *testing.T) {
	for name, tt := range map[string]struct {
		file string
		want []users.User
		err  string
	}{
		"a whole file": {
			file: `[{"name":"api","prefixes":[{"prefix":"/api/","permission":"readwrite"},{"key":"/e/api","permission":"read"}]}]`,
			want: []users.User{
				{Name: "api", Prefixes: []users.Grant{
					{Prefix: "/api/", Permission: "readwrite"},
					{Key: "/e/api", Permission: "read"},
				}},
			},
		},
		"an unknown field":          {file: `[{"name":"api","password":"x"}]`, err: "password"},
		"something behind the list": {file: `[] []`, err: "follows"},
		"no name":                   {file: `[{"prefixes":[]}]`, err: "[0].name"},
		"root":                      {file: `[{"name":"root"}]`, err: "[0].name"},
		"a name twice":              {file: `[{"name":"a"},{"name":"a"}]`, err: "[1].name"},
		"the empty prefix": {
			file: `[{"name":"a","prefixes":[{"prefix":"","permission":"read"}]}]`,
			err:  "[0].prefixes[0]",
		},
		"a prefix and a key": {
			file: `[{"name":"a","prefixes":[{"prefix":"x","key":"y","permission":"read"}]}]`,
			err:  "exactly one",
		},
		"an unknown permission": {
			file: `[{"name":"a","prefixes":[{"prefix":"x","permission":"all"}]}]`,
			err:  `"all"`,
		},
		"a permission that is not there": {file: `[{"name":"a","prefixes":[{"prefix":"x"}]}]`, err: "permission"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "users.json")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := users.Load(path)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error = %v, want one with %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("users (-want +got):\n%s", diff)
			}
		})
	}
}
