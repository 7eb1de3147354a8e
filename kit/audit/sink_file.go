package audit

import (
	"context"
	"os"
	"path/filepath"
)

// fileSink appends to files of a directory, such as a mounted one. It opens them for each delivery, so that they can be
// rotated or replaced at any time.
type fileSink struct {
	dir  string
	busy chan struct{} // has one element while a delivery is at work
}

func newFileSink(dir string) *fileSink { return &fileSink{dir: dir, busy: make(chan struct{}, 1)} }

// String returns the setting.
func (s *fileSink) String() string { return "file:" + s.dir }

// Close does nothing: no file stays open.
func (s *fileSink) Close() error { return nil }

// Send appends lines. One delivery to a directory that hangs stays in the background; there is no second one before it
// ends.
func (s *fileSink) Send(ctx context.Context, lines []Line) error {
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		err := s.append(lines)
		<-s.busy
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *fileSink) append(lines []Line) error {
	texts := map[string][]byte{}
	for _, l := range lines {
		name := l.Service + "." + l.Log
		texts[name] = append(texts[name], l.Text...)
	}
	for name, text := range texts {
		file, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(text)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	return nil
}
