package rest

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// reader reads the body of a request.
type reader struct {
	w        http.ResponseWriter
	r        *http.Request
	most     int
	patience time.Duration
	// large takes room for a body that is longer than most, up to large.MaxMessage; nil if it may not be.
	large func(n int) (LargeRoom, error)

	// memory takes what another body becomes once it is decoded.
	memory func(r *http.Request, n int) (release func(), err error)

	room LargeRoom // nil until it is taken
	free func()    // of memory; nil until it is taken
	late atomic.Bool
}

func (b *reader) release() {
	if b.room != nil {
		b.room.Release()
	}
	if b.free != nil {
		b.free()
	}
}

// count takes the memory for a body that is not large.
func (b *reader) count(n int) (err error) {
	if b.room == nil {
		b.free, err = b.memory(b.r, n)
	}
	if n > large.MaxOrdinary {
		err = withStatus(http.StatusRequestEntityTooLarge, err)
	}
	return err
}

// all reads under a deadline of its own, which is lifted afterwards: left on it would end a watch. Of a large body no
// more is read than it has room for.
func (b *reader) all() ([]byte, error) {
	if b.r.Body == nil || b.r.Body == http.NoBody {
		return nil, nil
	}
	control := http.NewResponseController(b.w)
	control.SetReadDeadline(time.Now().Add(b.patience)) //nolint:errcheck // a writer without deadlines has none to keep
	data, err := b.read(control)
	control.SetReadDeadline(time.Time{}) //nolint:errcheck
	return data, err
}

func (b *reader) read(control *http.ResponseController) ([]byte, error) {
	most := b.most
	if b.large != nil {
		most = large.MaxMessage
	}
	body := io.Reader(http.MaxBytesReader(b.w, b.r.Body, int64(most)))
	if b.large != nil && b.r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return nil, b.failed(err, most)
		}
		body = unpacked
	}
	data, err := io.ReadAll(io.LimitReader(body, int64(b.most)+1))
	if err != nil {
		return nil, b.failed(err, most)
	}
	if len(data) <= b.most {
		return data, nil
	}
	if b.large == nil {
		return nil, tooLong(b.most)
	}
	if b.room, err = b.large(b.length(most)); err != nil {
		return nil, err
	}
	came := make(chan struct{})
	defer close(came)
	go func() {
		select {
		case <-b.room.Late():
			b.late.Store(true)
			control.SetReadDeadline(time.Now()) //nolint:errcheck // its body is read to its end otherwise
		case <-came:
		}
	}()
	whole := make([]byte, len(data), max(b.length(most), len(data))+1)
	copy(whole, data)
	whole, err = readInto(whole, body, most)
	if err != nil {
		return nil, b.failed(err, most)
	}
	if len(whole) > most {
		return nil, tooLong(most)
	}
	b.room.Came()
	return whole, b.room.Grow(large.CostOfJSON(whole))
}

// length is how long a large body may become.
func (b *reader) length(most int) int {
	if n := b.r.ContentLength; n > 0 && n < int64(most) && b.r.Header.Get("Content-Encoding") == "" {
		return int(n)
	}
	return most
}

// readInto appends what is left of a body to data, up to one byte more than most.
func readInto(data []byte, from io.Reader, most int) ([]byte, error) {
	for len(data) <= most {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)] // the client has sent more than it said
		}
		n, err := from.Read(data[len(data):min(cap(data), most+1)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

func (b *reader) failed(err error, most int) error {
	tooLarge := new(http.MaxBytesError)
	switch {
	case errors.As(err, &tooLarge):
		return tooLong(most)
	case b.late.Load():
		return rpcerr.TooMany("the body of the request was not complete, and another caller waited for its room", time.Second)
	}
	return rpcerr.Invalid(object.Fault{Description: "the body did not come to its end"})
}

func tooLong(most int) error {
	return withStatus(http.StatusRequestEntityTooLarge,
		rpcerr.TooMany(fmt.Sprintf("the body is larger than %d bytes", most), 0))
}
