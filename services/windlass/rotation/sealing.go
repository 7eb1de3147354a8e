package rotation

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// Purposes of what the key of an authority signs.
const (
	forNext    = "next authority of "       // and the name of the authority
	forSealing = "sealing key of the host " // and the name of the host
)

// Sign returns the signature by which hosts know that the next authority was made by a holder of the present one's key.
func Sign(present *identity.Authority, name string, nextPEM []byte) ([]byte, error) {
	return present.SignStatement(forNext+name, nextPEM)
}

// key is the key of this process to which other hosts encrypt the key of the next authority. It is never on a disk.
type key struct{ private hpke.PrivateKey }

func newKey() (key, error) {
	private, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	return key{private}, err
}

func (k key) public() []byte { return k.private.PublicKey().Bytes() }

// boundTo is what an encrypted key is bound to: it does not decrypt for another rotation or host.
func boundTo(r *hostv1.Rotation, host string) []byte {
	return []byte("windlass rotation\x00" + r.GetAuthority() + "\x00" + r.GetId() + "\x00" + host)
}

// seal encrypts the key of the next authority for a host. The services' authority must have signed the host's key: only
// control-plane hosts have that authority's key.
func seal(services *identity.Authority, r *hostv1.Rotation, w *hostv1.SealingKey, keyPEM []byte) (*hostv1.SealedKey,
	error,
) {
	if err := services.CheckStatement(forSealing+w.GetHost(), w.GetKey(), w.GetSignature()); err != nil {
		return nil, err
	}
	public, err := hpke.DHKEM(ecdh.X25519()).NewPublicKey(w.GetKey())
	if err != nil {
		return nil, fmt.Errorf("sealing key of host %s: %w", w.GetHost(), err)
	}
	sealed, err := hpke.Seal(public, hpke.HKDFSHA256(), hpke.AES256GCM(), boundTo(r, w.GetHost()), keyPEM)
	return &hostv1.SealedKey{Host: w.GetHost(), SealingKey: w.GetKey(), Sealed: sealed}, err
}

// open decrypts what seal made for this process.
func (k key) open(r *hostv1.Rotation, host string, sealed *hostv1.SealedKey) ([]byte, error) {
	return hpke.Open(k.private, hpke.HKDFSHA256(), hpke.AES256GCM(), boundTo(r, host), sealed.GetSealed())
}
