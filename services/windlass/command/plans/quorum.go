package plans

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// quorumRequest reads the file of a quorum plan, which is not an object of a kind.
func quorumRequest(e *session.Env, f *flags) (*etcdv1.PlanQuorumRequest, error) {
	if len(f.Names) != 1 {
		return nil, fmt.Errorf("specify one file, not %d", len(f.Names))
	}
	name := f.Names[0]
	raw, err := readAll(name, e.In)
	if err != nil {
		return nil, err
	}
	body, err := manifest.JSON(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, fmt.Errorf("%s: must be an object", name)
	}
	req := &etcdv1.PlanQuorumRequest{}
	if _, whole := top["quorum"]; whole {
		err = manifest.Decode(body, req)
	} else {
		req.Quorum = &etcdv1.Quorum{}
		err = manifest.Decode(body, req.Quorum)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return req, nil
}

// readAll reads a file, or in if the name is -.
func readAll(name string, in io.Reader) ([]byte, error) {
	const limit = 8 << 20 // the limit of one document
	if name != "-" {
		opened, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		in = opened
	}
	return io.ReadAll(io.LimitReader(in, limit))
}
