package supervise

import (
	"io"
	"os"
	"strings"
)

// LastLine returns the last line of a log, at most 300 bytes of it.
func LastLine(path string) string {
	const tail = 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, size-tail), tail))
	if err != nil {
		return err.Error()
	}
	return lastOf(string(data))
}

// lastOf returns the last line of a text, at most 300 bytes of it.
func lastOf(text string) string {
	const most = 300
	text = strings.TrimSpace(text)
	line := text[strings.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(line[:min(len(line), most)], "")
}
