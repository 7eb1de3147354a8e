package service

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// restLanes are the ways in which clients come to REST.
var restLanes = map[string][]string{"HTTP/1.1": {"http/1.1"}, "h2 and HTTP/1.1": {"h2", "http/1.1"}}

func eachREST(t *testing.T, test func(t *testing.T, w *world, client func(user string) *http.Client)) {
	w := newWorld(t)
	for name, protocols := range restLanes {
		t.Run(name, func(t *testing.T) {
			here := *w
			here.t = t
			test(t, &here, func(user string) *http.Client { return here.http(user, protocols...) })
		})
	}
}

func mediaOf(media string) http.Header { return http.Header{"Content-Type": {media}} }

func TestRESTPassesTheCallersIdentityAndNoForgedOne(t *testing.T) {
	eachREST(t, func(t *testing.T, w *world, client func(string) *http.Client) {
		forged := http.Header{
			"Windlass-User": {"root"}, "Windlass-Uid": {"forged"}, "Grpc-Metadata-Windlass-Uid": {"forged"},
			"Grpc-Metadata-Windlass-User": {"root"}, "Grpc-Metadata-Windlass-Group": {"system:masters"},
			"Grpc-Metadata-Authorization": {"x"}, "Cookie": {"a=b"}, "X-Forwarded-For": {"10.9.9.9"}, "X-Request-Id": {"mine"},
			"Traceparent": {"00-1"},
		}
		got := w.do("GET", "/v1/namespaces/ns/machines/a", forged, "", client("alice"))
		if got.StatusCode != http.StatusOK || got.Header.Get("ETag") != `"7"` || got.Header.Get("X-Request-Id") != "mine" {
			t.Fatalf("%d %v %s", got.StatusCode, got.Header, got.body)
		}
		for key := range got.Header {
			if strings.HasPrefix(key, "Grpc-") {
				t.Errorf("the header %s leaks", key)
			}
		}
		var machine struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal([]byte(got.body), &machine); err != nil {
			t.Fatal(err)
		}
		seen := machine.Metadata.Annotations
		for key, want := range map[string]string{
			"windlass-user": "alice", "windlass-uid": "", "windlass-group": "staff,system:authenticated",
			"windlass-request-id": "mine", "traceparent": "00-1",
			"authorization": "", "cookie": "", "x-forwarded-for": "", "x-forwarded-host": "", "grpcgateway-cookie": "",
		} {
			if seen[key] != want {
				t.Errorf("the backend saw %s = %q, want %q", key, seen[key], want)
			}
		}
		token := w.do("GET", "/v1/namespaces/ns/machines/a", http.Header{"Authorization": {"bearer " + goodToken}}, "",
			client(""))
		if !strings.Contains(token.body, `"windlass-user":"carol"`) || strings.Contains(token.body, goodToken) {
			t.Errorf("by token: %s", token.body)
		}
	})
}

func TestRESTRefusals(t *testing.T) {
	w := newWorld(t)
	create := "/v1/namespaces/ns/machines"
	patched := "/v1/namespaces/ns/machines/a"
	js := mediaOf("application/json")
	for _, c := range []struct {
		name         string
		method, path string
		header       http.Header
		body         string
		anonymous    bool
		status       int
		want         string
	}{
		{name: "no credentials", method: "GET", path: create, anonymous: true, status: 401, want: `"code":16`},
		{
			name: "no credentials and no such address", method: "GET", path: "/v1/nothing", anonymous: true, status: 401,
			want: `"code":16`,
		},
		{
			name: "a wrong token", method: "GET", path: create, header: http.Header{"Authorization": {"Bearer x"}}, status: 401,
			want: "not known",
		},
		{
			name: "another scheme than a token", method: "GET", path: create, header: http.Header{"Authorization": {"Basic x"}},
			status: 401, want: "bearer",
		},
		{name: "no such address", method: "GET", path: "/v1/nothing", status: 404, want: `"code":5`},
		{name: "an object without a name", method: "GET", path: create + "/", status: 404, want: `"code":5`},
		{name: "no such object", method: "GET", path: create + "/missing", status: 404, want: `"reason":"NOT_FOUND"`},
		{
			name: "a method that the address does not have", method: "PUT", path: create, header: js, body: "{}", status: 405,
			want: "GET, POST",
		},
		{name: "a method in a header", method: "POST", path: patched, header: http.Header{
			"X-Http-Method-Override": {"DELETE"},
		}, status: 405, want: "POST"},
		{
			name: "an unknown query parameter", method: "GET", path: create + "?labelSelectr=x", status: 400,
			want: `"field":"labelSelectr"`,
		},
		{
			name: "a query parameter by its proto name", method: "GET", path: create + "?label_selector=x", status: 400,
			want: `"field":"label_selector"`,
		},
		{
			name: "a query parameter that the address gives", method: "GET", path: create + "?namespace=x", status: 400,
			want: "address",
		},
		{name: "a number that is none", method: "GET", path: create + "?limit=many", status: 400, want: `"field":"limit"`},
		{
			name: "a parameter given twice", method: "GET", path: create + "?limit=1&limit=2", status: 400,
			want: "more than once",
		},
		{
			name: "a query where the body has all", method: "POST", path: "/v1/machines:plan?name=x", header: js, body: "{}",
			status: 400, want: "body",
		},
		{
			name: "unknown fields, all of them", method: "POST", path: create, header: js,
			body: `{"spec":{"a":1,"lifecycleHooks":{"preDrain":[{"nam":"x"}]}},"x":1}`, status: 400,
			want: `"field":"spec.lifecycleHooks.preDrain[0].nam"`,
		},
		{
			name: "the first of several unknown fields", method: "POST", path: create, header: js,
			body: `{"spec":{"a":1},"x":1}`, status: 400, want: `"field":"spec.a"`,
		},
		{
			name: "a field by its proto name", method: "POST", path: create, header: js, body: `{"api_version":"v1"}`,
			status: 400, want: "api_version",
		},
		{
			name: "something after the document", method: "POST", path: create, header: js, body: `{"kind":"Machine"}{}`,
			status: 400, want: `"code":3`,
		},
		{
			name: "two YAML documents", method: "POST", path: create, header: mediaOf("application/yaml"),
			body: "kind: Machine\n---\nkind: Machine\n", status: 400, want: "more than one",
		},
		{name: "no JSON", method: "POST", path: create, header: js, body: `{`, status: 400, want: `"code":3`},
		{
			name: "a form", method: "POST", path: create, header: mediaOf("application/x-www-form-urlencoded"), body: "a=b",
			status: 415, want: "application/json",
		},
		{name: "no content type", method: "POST", path: create, body: "{}", status: 415, want: "Content-Type"},
		{
			name: "a patch that does not say what it is", method: "PATCH", path: patched, header: js, body: "{}", status: 415,
			want: "application/merge-patch+json",
		},
		{
			name: "a body where none belongs", method: "DELETE", path: patched, header: js, body: `{"preconditions":{}}`,
			status: 400, want: "no body",
		},
		{
			name: "a body that is too large", method: "POST", path: create, header: js, body: strings.Repeat(" ", 5<<20),
			status: 413, want: "larger",
		},
		{
			name: "an error of a watch before its first message", method: "GET",
			path: "/v1/machines:watch?labelSelector=expired", status: 400, want: `"reason":"EXPIRED"`,
		},
		{
			name: "a watch of something that has none", method: "GET", path: patched + "?watch=true", status: 400,
			want: `"field":"watch"`,
		},
		{name: "a page of another site", method: "POST", path: create, header: http.Header{
			"Content-Type":   {"text/plain"},
			"Sec-Fetch-Site": {"cross-site"},
		}, body: "{}", status: 403, want: "another site"},
		{name: "a page of another origin", method: "POST", path: create, header: http.Header{
			"Content-Type": {"application/json"}, "Origin": {"https://evil.example"},
		}, body: "{}", status: 403, want: "another site"},
	} {
		t.Run(c.name, func(t *testing.T) {
			here := *w
			here.t = t
			user := "alice"
			if c.anonymous {
				user = ""
			}
			got := here.do(c.method, c.path, c.header, c.body, here.http(user, "http/1.1"))
			var st struct {
				Code    int
				Message string
			}
			if err := json.Unmarshal([]byte(got.body), &st); err != nil || st.Code == 0 || st.Message == "" {
				t.Errorf("the answer is no status: %s", got.body)
			}
			if got.StatusCode != c.status || !strings.Contains(got.body, c.want) {
				t.Errorf("%d %s, want %d with %q", got.StatusCode, got.body, c.status, c.want)
			}
			if c.status == 401 && got.Header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
			if c.status == 405 && !strings.Contains(got.Header.Get("Allow"), "GET") {
				t.Errorf("Allow: %q", got.Header.Get("Allow"))
			}
		})
	}
}

// A page of evil.example that has its name resolve to the gateway sends that name: for its browser, page and gateway
// are one site.
func TestAHostThatIsNotTheGatewaysIsRefused(t *testing.T) {
	eachREST(t, func(t *testing.T, w *world, client func(string) *http.Client) {
		_, port, err := net.SplitHostPort(w.address)
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]int{
			"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403,
			"*.evil.example": 403, w.address: 200, "localhost": 200, "gateway": 200, "localhost:" + port: 200,
			"192.0.2.7:" + port: 200, "[::1]:" + port: 200,
			"[::1]": 200,
		} {
			for _, path := range []string{"/v1/namespaces/ns/machines/a", "/openapi.json"} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.address+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = host
				r.Header.Set("Origin", "https://"+host)
				r.Header.Set("Sec-Fetch-Site", "same-origin")
				got, err := client("alice").Do(r)
				if err != nil {
					t.Errorf("host %s: %v", host, err)
					continue
				}
				got.Body.Close()
				if got.StatusCode != want {
					t.Errorf("host %s, %s: %d, want %d", host, path, got.StatusCode, want)
				}
			}
		}
		w.until(func() bool {
			return slices.ContainsFunc(w.refusals(), func(r audit.Record) bool {
				return strings.Contains(r.Reason, "evil.example")
			})
		})
	})
}

func TestRESTTakesAndGivesDocuments(t *testing.T) {
	eachREST(t, func(t *testing.T, w *world, client func(string) *http.Client) {
		c := client("alice")
		path := "/v1/namespaces/ns/machines"
		const document = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"m"},"spec":{"providerSpec":{}}}`
		if got := w.do("POST", path, mediaOf("application/json; charset=utf-8"), document, c); got.body != document+"\n" {
			t.Errorf("created from JSON: %d %s", got.StatusCode, got.body)
		}
		const yaml = "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata:\n  name: m\nspec:\n  providerSpec: {}\n"
		if got := w.do("POST", path, mediaOf("application/yaml"), yaml, c); got.body != document+"\n" {
			t.Errorf("created from YAML: %d %s", got.StatusCode, got.body)
		}
		asked := mediaOf("application/yaml")
		asked.Set("Accept", "application/yaml, */*;q=0.1")
		if got := w.do("POST", path, asked, yaml, c); got.body != yaml ||
			got.Header.Get("Content-Type") != "application/yaml" {
			t.Errorf("answered in YAML: %d %v %s", got.StatusCode, got.Header, got.body)
		}
		if got := w.do("POST", path+"?dryRun=All", mediaOf("application/json"), document, c); !strings.Contains(got.body,
			`"dryRun":"All"`) {
			t.Errorf("dry run: %d %s", got.StatusCode, got.body)
		}
		for _, media := range []string{
			"application/json-patch+json", "application/merge-patch+json",
			"application/strategic-merge-patch+json",
		} {
			const patch = `{"metadata": {"labels": {"a/b": null}}} `
			got := w.do("PATCH", path+"/m", mediaOf(media), patch, c)
			want, _ := json.Marshal(patch)
			if !strings.Contains(got.body, `"patch":`+string(want)) || !strings.Contains(got.body, `"type":"`+media+`"`) {
				t.Errorf("%s: %d %s", media, got.StatusCode, got.body)
			}
		}
		for _, name := range []string{"a.b", "a:b", "a%25b", "a:b:c"} {
			if got := w.do("GET", path+"/"+name, nil, "", c); !strings.Contains(got.body,
				`"name":"`+strings.ReplaceAll(name, "%25", "%")+`"`) {
				t.Errorf("name %s: %d %s", name, got.StatusCode, got.body)
			}
		}
	})
}

func TestRESTWatches(t *testing.T) {
	eachREST(t, func(t *testing.T, w *world, client func(string) *http.Client) {
		for _, path := range []string{
			"/v1/machines:watch", "/v1/machines?watch=true",
			"/v1/namespaces/ns/machines?watch=1&labelSelector=x",
		} {
			got, err := client("alice").Get("https://" + w.address + path)
			if err != nil {
				t.Fatal(err)
			}
			if got.Header.Get("Content-Type") != "application/x-ndjson" {
				t.Errorf("%s: %v", path, got.Header)
			}
			lines := bufio.NewScanner(got.Body)
			for _, want := range []string{
				`{"type":"ADDED","object":{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine",`,
				`{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}`,
				`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`,
			} {
				if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
					t.Errorf("%s: line %q, want %q", path, lines.Text(), want)
				}
			}
			receive(t, w.machines.entered)
			got.Body.Close()
			receive(t, w.machines.cancelled)
		}
		got := w.do("GET", "/v1/machines?watch=true&labelSelector=breaks", nil, "", client("alice"))
		lines := strings.Split(strings.TrimSpace(got.body), "\n")
		if last := lines[len(lines)-1]; got.StatusCode != http.StatusOK ||
			!strings.HasPrefix(last, `{"code":14,"message":"etcd has no leader"`) {
			t.Errorf("last line %q", last)
		}
		if got := w.do("GET", "/v1/machines?watch=false", nil, "", client("alice")); !strings.Contains(got.body,
			"MachineList") {
			t.Errorf("watch=false: %d %s", got.StatusCode, got.body)
		}
	})
}

func TestARESTWatchThatNobodyReadsIsNotReadFromTheBackend(t *testing.T) {
	eachREST(t, func(t *testing.T, w *world, client func(string) *http.Client) {
		before := w.machines.flooded()
		got,
			err := client("alice").Get("https://" + w.address +
			"/v1/machines:watch?labelSelector=flood&allowWatchBookmarks=true")
		if err != nil {
			t.Fatal(err)
		}
		w.untilQuiet()
		if sent := (w.machines.flooded() - before) * (64 << 10); sent > 24<<20 {
			t.Errorf("the backend sent %d bytes without a reader", sent)
		}
		got.Body.Close()
		receive(t, w.machines.cancelled)
	})
}

func TestRESTWatchOfEventsIsMerged(t *testing.T) {
	w := newWorld(t)
	got, err := w.http("alice", "http/1.1").Get("https://" + w.address + "/v1/events?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	lines := bufio.NewScanner(got.Body)
	for i := range 4 {
		if !lines.Scan() {
			t.Fatal("the watch ended")
		}
		if bookmark := strings.Contains(lines.Text(), "BOOKMARK"); bookmark != (i == 3) {
			t.Errorf("line %d: %s", i, lines.Text())
		}
	}
}

func TestJoinOverRESTNeedsNoCredentials(t *testing.T) {
	w := newWorld(t)
	header := mediaOf("application/json")
	header.Set("Grpc-Metadata-Windlass-User", "root")
	got := w.do("POST", "/v1/machines:join", header, `{"token":"t"}`, w.http("", "http/1.1"))
	if got.StatusCode != http.StatusOK || got.body != `{"nodeName":"t"}`+"\n" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if got := w.do("POST", "/v1/machines:renew", header, `{}`,
		w.http("", "http/1.1")); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("renew: %d %s", got.StatusCode, got.body)
	}
}

func TestPagesThatNeedNoCredentials(t *testing.T) {
	w := newWorld(t)
	anonymous := w.http("", "http/1.1")
	for path, want := range map[string]string{
		"/":             "/v1/machines",
		"/healthz":      "ok",
		"/readyz":       "ready",
		"/openapi.json": `"/v1/namespaces/{namespace}/machines/{name}"`,
		"/docs/":        "swagger",
	} {
		got := w.do("GET", path, nil, "", anonymous)
		if got.StatusCode != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %.300s", path, got.StatusCode, got.body)
		}
	}
	if got := w.do("GET", "/docs/", nil, "", anonymous); !strings.Contains(got.Header.Get("Content-Security-Policy"),
		"script-src 'self' 'unsafe-inline'") {
		t.Errorf("the page's policy: %v", got.Header)
	}
}

func TestEveryRouteOfTheCatalogIsServed(t *testing.T) {
	methods, err := catalog.New(protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	if len(methods.Routes()) < 50 {
		t.Fatalf("only %d routes", len(methods.Routes()))
	}
	w := newWorld(t)
	client := w.http("alice", "h2", "http/1.1")
	for _, r := range methods.Routes() {
		if r.Method.Streaming {
			continue // a watch does not end; its service's other routes are registered together with it
		}
		path := strings.NewReplacer("{namespace}", "ns", "{name}", "x").Replace(r.Template)
		header, body := mediaOf("application/json"), "{}"
		if r.Verb == "PATCH" {
			header = mediaOf("application/merge-patch+json")
		}
		if r.Body == "" {
			header, body = nil, ""
		}
		// The backends do not do all of them, and one program has none, but the gateway must know where they go.
		got := w.do(r.Verb, path, header, body, client)
		if strings.Contains(got.body, `"kind":"address"`) || got.StatusCode == http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d %s", r.Verb, path, got.StatusCode, got.body)
		}
	}
}
