package rest

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/protobuf/proto"
)

// answerWriter writes the answer of a request, and has room for the message that it writes: of a call for its answer,
// of a stream for one message after the other.
type answerWriter struct {
	http.ResponseWriter
	take    func(n int) (release func(), err error)
	release func()
}

// counted takes room for a message and for its text, which is about as long, before the text is made.
func counted(_ context.Context, w http.ResponseWriter, m proto.Message) error {
	out, ok := w.(*answerWriter)
	if !ok {
		return errors.New("an answer of no request")
	}
	out.written()
	release, err := out.take(2 * proto.Size(m))
	if err == nil {
		out.release = release
	}
	return err
}

func (w *answerWriter) written() {
	w.release()
	w.release = func() {}
}

// Flush is called after each message of a stream. It returns when the client's connection has taken it.
func (w *answerWriter) Flush() {
	http.NewResponseController(w.ResponseWriter).Flush() //nolint:errcheck // net/http's writers can
	w.written()
}

// Unwrap lets http.ResponseController reach the deadlines.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
