package rest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// writeTrailersOnly refuses a gRPC call without reading it: the status is in the header, as gRPC's protocol allows.
func writeTrailersOnly(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	header := w.Header()
	header.Set("Content-Type", "application/grpc")
	header.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	header.Set("Grpc-Message", percentEncoded(st.Message()))
	if details, err := proto.Marshal(st.Proto()); err == nil && len(st.Proto().GetDetails()) > 0 {
		header.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
	w.WriteHeader(http.StatusOK)
}

// percentEncoded is gRPC's spelling of a message in a header.
func percentEncoded(message string) string {
	var b strings.Builder
	for i := range len(message) {
		c := message[i]
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
