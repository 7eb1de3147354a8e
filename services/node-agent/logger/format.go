package logger

import (
	"bytes"
	"strings"
	"time"
)

const (
	// timeFormat is that of a line's time, in UTC: of one length, so that times compare as their texts.
	timeFormat = "2006-01-02T15:04:05.000000000Z"
	// longest is how many bytes a record has at most, without its time and tags: a longer line has several.
	longest = 16 << 10

	wholeTag, partTag = "F", "P"
)

// appendRecords appends data as records of a stream. What does not end with a newline is a part of a line, which the
// next records of the stream continue.
func appendRecords(to []byte, stream string, at time.Time, data []byte) []byte {
	stamp := at.UTC().Format(timeFormat)
	for len(data) > 0 {
		text, tag := data[:min(longest, len(data))], partTag
		next := len(text)
		if i := bytes.IndexByte(data[:min(longest+1, len(data))], '\n'); i >= 0 {
			text, tag, next = data[:i], wholeTag, i+1
		}
		to = append(to, stamp...)
		to = append(to, ' ')
		to = append(to, stream...)
		to = append(to, ' ')
		to = append(to, tag...)
		to = append(to, ' ')
		to = append(to, text...)
		to = append(to, '\n')
		data = data[next:]
	}
	return to
}

// record is a line of a log file.
type record struct {
	time   string // empty: the line has none, for something else than the logger wrote it
	stream string
	whole  bool
	text   []byte // without newline
}

// parse reads a line of a log file, without its newline. What is no record is text. Container runtimes write times of
// several lengths, in their own zone. Source: Kubernetes, pkg/kubelet/kuberuntime/logs, parseCRILog.
func parse(line []byte) record {
	raw := record{whole: true, text: line}
	const spaces = 3
	fields := bytes.SplitN(line, []byte(" "), spaces+1)
	if len(fields) != spaces+1 {
		return raw
	}
	stamp, stream := string(fields[0]), string(fields[1])
	tag, _, _ := strings.Cut(string(fields[2]), ":") // further tags may follow
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || stream != Stdout && stream != Stderr || tag != wholeTag && tag != partTag {
		return raw
	}
	if len(stamp) != len(timeFormat) || stamp[len(stamp)-1] != 'Z' {
		stamp = at.UTC().Format(timeFormat)
	}
	return record{stamp, stream, tag == wholeTag, fields[spaces]}
}
