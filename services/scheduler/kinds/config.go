package kinds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxConfigBytes bounds the data of a config map or a secret, as in Kubernetes.
const maxConfigBytes = 1 << 20

const opaque = "Opaque" // the default type of secrets

// requiredKeys are the keys that secrets of a type must have.
var requiredKeys = map[string][]string{
	"kubernetes.io/tls":              {"tls.crt", "tls.key"},
	"kubernetes.io/dockerconfigjson": {".dockerconfigjson"},
	"kubernetes.io/dockercfg":        {".dockercfg"},
	"kubernetes.io/ssh-auth":         {"ssh-privatekey"},
}

// secretDocuments are the keys whose values must be JSON, by type.
var secretDocuments = map[string]string{
	"kubernetes.io/dockerconfigjson": ".dockerconfigjson",
	"kubernetes.io/dockercfg":        ".dockercfg",
}

func validateConfigMap(c *schedulingv1.ConfigMap) []object.Fault {
	bad := append(keyFaults("data", c.GetData()), keyFaults("binaryData", c.GetBinaryData())...)
	for _, k := range slices.Sorted(maps.Keys(c.GetBinaryData())) {
		if _, both := c.GetData()[k]; both {
			bad = append(bad, object.Faultf(fmt.Sprintf("binaryData['%s']", k), "is in data, too"))
		}
	}
	return append(bad, sizeFault("data", length(c.GetData())+length(c.GetBinaryData()))...)
}

func validateConfigMapUpdate(old, c *schedulingv1.ConfigMap) []object.Fault {
	if !old.GetImmutable() {
		return nil
	}
	var bad []object.Fault
	if !c.GetImmutable() {
		bad = append(bad, object.Faultf("immutable", "cannot be changed back from true"))
	}
	if !maps.Equal(old.GetData(), c.GetData()) {
		bad = append(bad, object.Faultf("data", "cannot be changed: the config map is immutable"))
	}
	if !maps.EqualFunc(old.GetBinaryData(), c.GetBinaryData(), bytes.Equal) {
		bad = append(bad, object.Faultf("binaryData", "cannot be changed: the config map is immutable"))
	}
	return bad
}

// defaultSecret merges stringData into data, which alone is stored.
func defaultSecret(s *schedulingv1.Secret) {
	if s.GetType() == "" {
		s.Type = opaque
	}
	if len(s.GetStringData()) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for k, v := range s.GetStringData() {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

// validateSecret never puts a value into a fault: faults are in logs and audit records.
func validateSecret(s *schedulingv1.Secret) []object.Fault {
	bad := append(keyFaults("data", s.GetData()), sizeFault("data", length(s.GetData()))...)
	for _, k := range requiredKeys[s.GetType()] {
		if _, ok := s.GetData()[k]; !ok {
			bad = append(bad, object.Faultf(fmt.Sprintf("data['%s']", k), "must be given for type %s", s.GetType()))
		}
	}
	if k := secretDocuments[s.GetType()]; k != "" {
		var document map[string]json.RawMessage
		if v, ok := s.GetData()[k]; ok && json.Unmarshal(v, &document) != nil {
			bad = append(bad, object.Faultf(fmt.Sprintf("data['%s']", k), "must be a JSON object for type %s", s.GetType()))
		}
	}
	if s.GetType() == "kubernetes.io/basic-auth" && s.GetData()["username"] == nil && s.GetData()["password"] == nil {
		bad = append(bad, object.Faultf("data", "must have username or password for type %s", s.GetType()))
	}
	return bad
}

// admitSecret refuses secrets while the service has no key to encrypt them by.
func (t *Tables) admitSecret(w *resource.Write[*schedulingv1.Secret]) error {
	if w.Deletes() {
		return nil
	}
	by, err := t.cfg.Store.SealsBy()
	if err == nil && by == 0 {
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION,
			"secrets/"+w.New.GetMetadata().GetName(), "scheduler has no key that encrypts secrets in etcd: see docs/security.md")
	}
	return err
}

func validateSecretUpdate(old, s *schedulingv1.Secret) []object.Fault {
	var bad []object.Fault
	if old.GetType() != s.GetType() {
		bad = append(bad, object.Faultf("type", "cannot be changed"))
	}
	if !old.GetImmutable() {
		return bad
	}
	if !s.GetImmutable() {
		bad = append(bad, object.Faultf("immutable", "cannot be changed back from true"))
	}
	if !maps.EqualFunc(old.GetData(), s.GetData(), bytes.Equal) {
		bad = append(bad, object.Faultf("data", "cannot be changed: the secret is immutable"))
	}
	return bad
}

// keyFaults checks keys, which become names of files and variables: "." and names that begin with ".." are refused.
func keyFaults[V any](path string, data map[string]V) (bad []object.Fault) {
	for _, k := range slices.Sorted(maps.Keys(data)) {
		for _, why := range validation.IsConfigMapKey(k) {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s['%s']", path, k), "invalid key: %s", why))
		}
	}
	return bad
}

func sizeFault(path string, n int) []object.Fault {
	if n <= maxConfigBytes {
		return nil
	}
	return []object.Fault{object.Faultf(path, "has %d bytes: may not be more than %d in all", n, maxConfigBytes)}
}

// length returns the bytes of all values.
func length[V string | []byte](data map[string]V) (n int) {
	for _, v := range data {
		n += len(v)
	}
	return n
}
