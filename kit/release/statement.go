package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// digestName is a digest: an algorithm and a value.
var digestName = regexp.MustCompile(`^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$`)

// statementType is what a signature states. Source: the "simple signing" of container images.
const statementType = "atomic container signature"

// statement is the text that is signed.
type statement struct {
	Critical struct {
		Type  string `json:"type"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
	} `json:"critical"`
	Optional struct {
		Creator   string `json:"creator,omitempty"`
		Timestamp int64  `json:"timestamp,omitempty"` // seconds since 1970
	} `json:"optional"`
}

func statementOf(digest, ref string, now time.Time) []byte {
	var s statement
	s.Critical.Type = statementType
	s.Critical.Image.Digest = digest
	s.Critical.Identity.Reference, _, _ = strings.Cut(ref, "@")
	s.Optional.Creator, s.Optional.Timestamp = "windlass", now.Unix()
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and a number always have a JSON form
	}
	return raw
}

// checkStatement refuses a text that does not state that an image is good.
func checkStatement(raw []byte, digest string) error {
	var s statement
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return fmt.Errorf("what is signed is no statement about an image: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("what is signed is no statement about an image: something follows it")
	}
	switch {
	case s.Critical.Type != statementType:
		return fmt.Errorf("the statement is of type %q, not %q", s.Critical.Type, statementType)
	case s.Critical.Identity.Reference == "":
		return errors.New("the statement names no image: critical.identity.docker-reference is empty")
	case s.Critical.Image.Digest != digest:
		return fmt.Errorf("the statement is about another image, %s", s.Critical.Image.Digest)
	}
	return nil
}
