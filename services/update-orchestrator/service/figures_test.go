package service

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// product is a release of 862 manifests, as many as one of OpenShift 4.13 has, in files of its names. A name says of
// which kind its manifests are: those without a service that owns them are kept.
func product(t *testing.T, version string) (files map[string]string, operators []string) {
	t.Helper()
	raw, err := os.ReadFile("../plan/testdata/manifest-names-default.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(raw))
	more := 862 - len(names) // some files have two
	files = map[string]string{}
	for i, file := range names {
		name := fmt.Sprintf("m%03d", i)
		switch {
		case strings.Contains(file, "clusteroperator"):
			operators = append(operators, name)
			files[file] = operator(name, version)
			continue
		case strings.Contains(file, "deployment"):
			files[file] = manifest("Deployment", "apps/v1", name,
				"  namespace: default\nspec:\n  replicas: 1\n  selector:\n    matchLabels: "+
					"{app: "+name+"}\n  template:\n    metadata:\n      labels: {app: "+name+"}\n    spec:\n      containers:\n"+
					"      - {name: c, image: docker.io/ocpqe/hello-pod, env: [{name: RELEASE, value: \""+version+"\"}]}\n")
		case strings.Contains(file, "namespace"):
			files[file] = manifest("Namespace", "v1", name, "  labels: {release: \""+version+"\"}\n")
		case strings.Contains(file, "service.yaml"):
			files[file] = manifest("Service", "v1", name, "  namespace: default\n  labels: {release: \""+version+"\"}\n"+
				"spec:\n  selector: {app: "+name+"}\n  ports:\n  - {port: 80}\n")
		default:
			files[file] = kept(name, version)
		}
		if more > 0 {
			more--
			files[file] += "---\n" + kept(name+"b", version)
		}
	}
	return files, operators
}

func TestAProductIsUpdatedWithOperatorsThatAnswerAtOnce(t *testing.T) {
	c := start(t)
	files, operators := product(t, "1.0.0")
	c.cfg.initial = c.image("1.0.0", files)
	files, _ = product(t, "1.0.1")
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.offer([2]string{"1.0.0", c.cfg.initial}, [2]string{"1.0.1", next})
	begun := time.Now()
	c.run()
	c.ready(operators...)
	c.version(completed("1.0.0"))
	t.Logf("the first release took %s", time.Since(begun).Round(time.Millisecond))
	c.follow("stable")
	c.version(offers("1.0.1"))
	begun = time.Now()
	c.desire("1.0.1", "")
	c.version(completed("1.0.1"))
	t.Logf("an update of %d files and %d operators took %s", len(files), len(operators),
		time.Since(begun).Round(time.Millisecond))
}
