package split

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials are for the gRPC server of the GRPC lane: they read the handshake that is finished already.
func Credentials() credentials.TransportCredentials { return finished{} }

type finished struct{}

var errNotFinished = errors.New("not a TLS connection whose handshake is finished")

func (finished) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := conn.(*tls.Conn)
	if !ok || !c.ConnectionState().HandshakeComplete {
		return nil, nil, errNotFinished
	}
	info := credentials.TLSInfo{
		State:          c.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
	return conn, info, nil
}

func (finished) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errNotFinished
}

func (finished) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (f finished) Clone() credentials.TransportCredentials { return f }

func (finished) OverrideServerName(string) error { return errNotFinished }
