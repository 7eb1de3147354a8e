package identity

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TrustOnly returns settings for a client without a certificate of its own that trusts the authorities in a file.
func TrustOnly(caFile string) (*tls.Config, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: holds no certificate", caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}, nil
}
