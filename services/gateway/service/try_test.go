package service

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

func TestTry(t *testing.T) {
	w := newWorld(t)
	dir := "/tmp/gw-try"
	cert, key, _ := w.authority.Issue(identity.Request{CommonName: "alice", URI: identity.UserURI("alice"), Client: true, IPs: []net.IP{}})
	os.WriteFile(filepath.Join(dir, "a.crt"), cert, 0o600)
	os.WriteFile(filepath.Join(dir, "a.key"), key, 0o600)
	os.WriteFile(filepath.Join(dir, "ca.crt"), w.authority.PEM(), 0o600)
	os.WriteFile(filepath.Join(dir, "address"), []byte(w.address), 0o600)
	_ = x509.NewCertPool
	_ = pem.Encode
	for i := 0; i < 60; i++ {
		if _, err := os.Stat(dir + "/stop"); err == nil {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Println("over")
}
