package recovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ReadRecoveryKey returns the private key in a file, or on in if the file is "-".
func ReadRecoveryKey(file string, in io.Reader) (string, error) {
	const most = 64 << 10 // bytes
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, most))
	return string(raw), err
}

// ReadKeys returns the encrypted keys in a file beside a snapshot.
func ReadKeys(file string) ([]byte, error) {
	sealed, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the snapshot has no keys beside it", err)
	}
	return sealed, err
}
