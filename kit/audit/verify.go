package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Report is what Verify found of one log.
type Report struct {
	Log     string   // path of the log, or of the file that was named
	Files   []string // its files, oldest first
	Records uint64
	First   uint64 // numbers of the first and the last record
	Last    uint64
	Break   *Break   // nil if the chain is intact
	Notes   []string // what is no break, but should be known
}

// Break is where a chain breaks.
type Break struct {
	File   string
	Line   int    // from 1
	Record uint64 // number of the record that does not follow the one before, as far as it can be read
	Why    string
}

func (b *Break) String() string {
	return fmt.Sprintf("%s:%d: record %d: %s", b.File, b.Line, b.Record, b.Why)
}

// errNoLogs means that there was nothing to verify.
var errNoLogs = errors.New("no audit log found")

// Verify checks the chains of logs. A path is a directory, in which and in whose directories all logs are looked for
// and checked with their older files; or one file, which is checked by itself. An error names what could not be read:
// everything else is in the reports, also chains that break.
func Verify(paths ...string) ([]Report, error) {
	var reports []Report
	var errs []error
	add := func(r Report, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		reports = append(reports, r)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !info.IsDir() {
			add(verifyFiles(path, []string{path}, true))
			continue
		}
		logs, err := Logs(path)
		errs = append(errs, err)
		for _, log := range logs {
			add(verifyLog(log))
		}
	}
	err := errors.Join(errs...)
	if len(reports) == 0 && err == nil {
		return nil, errNoLogs
	}
	return reports, err
}

// Logs returns the paths of the logs in a directory and in its directories, sorted: also of one whose newest file is
// missing.
func Logs(dir string) ([]string, error) {
	found := map[string]bool{}
	var unread []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a running program removed it
		}
		if err != nil {
			unread = append(unread, err)
			return nil
		}
		if d.IsDir() {
			// Below a service's own files may be those of machines and pods, and a pod may write what it likes.
			if rel, err := filepath.Rel(dir, path); err == nil && strings.Contains(rel, string(filepath.Separator)) {
				return fs.SkipDir
			}
			return nil
		}
		for _, name := range Files {
			at := strings.Index(d.Name(), name)
			if at < 0 || at > 0 && d.Name()[at-1] != '.' { // "SERVICE." comes before it in the directory of a file sink
				continue
			}
			switch rest := d.Name()[at+len(name):]; {
			case rest == "", len(rest) == 1+numberDigits && strings.Trim(rest, ".0123456789") == "":
				found[strings.TrimSuffix(path, rest)] = true
			}
		}
		return nil
	})
	logs := make([]string, 0, len(found))
	for l := range found {
		logs = append(logs, l)
	}
	slices.Sort(logs)
	return logs, errors.Join(append(unread, err)...)
}

// verifyLog checks a log with its older files. A rotation while it reads makes it read again.
func verifyLog(path string) (Report, error) {
	for try := 0; ; try++ {
		files, err := olderFiles(path)
		if err != nil {
			return Report{}, err
		}
		r, err := verifyFiles(path, append(files, path), false)
		again, listErr := olderFiles(path)
		if listErr != nil {
			return r, listErr
		}
		if try < 3 && !slices.Equal(files, again) {
			continue
		}
		return r, err
	}
}

// verifyFiles checks files that follow each other. alone says that others may come before the first.
func verifyFiles(log string, files []string, alone bool) (Report, error) {
	v := verifier{report: Report{Log: log, Files: files}, alone: alone, retired: map[string]string{}}
	for i, f := range files {
		file, err := os.Open(f)
		if errors.Is(err, fs.ErrNotExist) && i == len(files)-1 && i > 0 {
			v.fail(f, 0, "the newest file is missing")
			break
		}
		if err != nil {
			return v.report, err
		}
		err = v.read(f, file, i == len(files)-1)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return v.report, err
		}
		if v.report.Break != nil {
			break
		}
	}
	v.end()
	return v.report, nil
}

// verifier follows one chain.
type verifier struct {
	report  Report
	alone   bool
	begins  string            // the hash that the first record says comes before it
	prev    string            // hash of the last line
	retired map[string]string // hashes of last lines of removed files → name
}

func (v *verifier) fail(file string, line int, why string) {
	v.report.Break = &Break{File: file, Line: line, Record: v.report.Last + 1, Why: why}
}

// read checks the records of one file. Only the newest may end in a line that is being written.
func (v *verifier) read(name string, from io.Reader, newest bool) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF) && newest:
			v.report.Notes = append(v.report.Notes,
				fmt.Sprintf("%s:%d: the last line has no end: it is being written, or a crash cut it off", name, n))
			return nil
		case errors.Is(err, io.EOF):
			v.fail(name, n, "the line has no end")
			return nil
		case errors.Is(err, errLong):
			v.fail(name, n, fmt.Sprintf("the line has more than %d bytes", maxLine))
			return nil
		case err != nil:
			return err
		}
		if why := v.follow(line); why != "" {
			v.fail(name, n, why)
			return nil
		}
	}
}

var errLong = errors.New("long line")

// readLine returns a line without its newline.
func readLine(from *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, errLong
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return line, err
		}
		return bytes.TrimSuffix(line, []byte("\n")), nil
	}
}

// follow checks that a line follows the one before; it returns why not.
func (v *verifier) follow(line []byte) string {
	var r Record
	if err := json.Unmarshal(line, &r); err != nil || r.Seq == 0 {
		return "the line is no record"
	}
	switch {
	case v.report.Records == 0:
		v.report.First, v.begins = r.Seq, r.Prev
		if (r.Seq == 1) != (r.Prev == "") {
			return "the first record has a number and a hash that do not go together"
		}
	case r.Seq != v.report.Last+1:
		return fmt.Sprintf("its number is %d, and that of the record before %d", r.Seq, v.report.Last)
	case r.Prev != v.prev:
		return "its hash is not that of the record before: one of the two was changed"
	}
	if r.Event == EventBegun && r.Seq > 1 {
		return "records before it are missing; the log began again " + r.Detail
	}
	if r.Event == EventRetired {
		v.retired[r.Hash] = r.Detail
	}
	v.report.Records, v.report.Last, v.prev = v.report.Records+1, r.Seq, hashOf(line)
	return ""
}

// end checks that there is a record, and that what comes before the first was removed by the policy.
func (v *verifier) end() {
	if v.report.Break == nil && v.report.Records == 0 {
		v.fail(v.report.Files[len(v.report.Files)-1], 1,
			"there is no record, not even the one that each log begins with: the log was emptied, or could never be written")
	}
	if v.report.Break != nil || v.begins == "" {
		return
	}
	name, ok := v.retired[v.begins]
	switch {
	case ok:
		v.report.Notes = append(v.report.Notes,
			fmt.Sprintf("the records before %d were removed with %s by the retention policy", v.report.First, name))
	case v.alone:
		v.report.Notes = append(v.report.Notes, fmt.Sprintf("the records before %d are in another file", v.report.First))
	default:
		v.report.Break = &Break{
			File: v.report.Files[0], Line: 1, Record: v.report.First,
			Why: "the records before it are missing, and no record says that they were removed by the retention policy",
		}
	}
}
