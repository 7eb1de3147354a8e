package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// broken says its version, as an executable that was built for a release does, and never serves.
const broken = `package main

import (
	"fmt"
	"os"
)

func main() {
	if os.Args[1] == "version" {
		fmt.Println("{\"version\": \"9.9.9\"}")
		return
	}
	fmt.Fprintln(os.Stderr, "this version cannot read its state")
	os.Exit(1)
}
`

// BrokenExecutable makes an executable of Windlass, of version 9.9.9, whose programs do not come up: "this version
// cannot read its state".
func BrokenExecutable(t *testing.T) string {
	t.Helper()
	return BuildProgram(t, broken)
}

// BuildProgram makes an executable of a Go program of one file.
func BuildProgram(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, file)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GO111MODULE=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	return out
}
