// The program of the images of critest does what its first argument says.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(what string, args []string) error {
	switch what {
	case "wait": // for SIGTERM, and write down that it was started in the file that is given, if any
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
		if err := note(args); err != nil {
			return err
		}
		<-asked
	case "ignore": // SIGTERM
		signal.Ignore(syscall.SIGTERM)
		if err := note(args); err != nil {
			return err
		}
		for {
			time.Sleep(time.Hour)
		}
	case "bomb": // start that many processes that do nothing, as far as that goes, and wait
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		for range n {
			fork()
		}
		<-asked
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "print": // what is given
		fmt.Println(strings.Join(args, " "))
	case "lines": // that many lines of 1 KiB, and wait
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		out := bufio.NewWriter(os.Stdout)
		for range n {
			fmt.Fprintln(out, strings.Repeat("x", 1023))
		}
		if err := out.Flush(); err != nil {
			return err
		}
		return run("wait", nil)
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "status": // what the kernel says of this process, and its directory and environment
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		dir, err := os.Getwd()
		fmt.Printf("%sDir:\t%s\nEnvironment:\t%s\n", status, dir, strings.Join(os.Environ(), " "))
		return err
	case "read": // the file that is given
		data, err := os.ReadFile(args[0])
		fmt.Printf("%s\n", data)
		return err
	case "write": // to the file that is given
		return os.WriteFile(args[0], []byte("written\n"), 0o600)
	case "take": // that many MiB of memory
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		taken := make([]byte, n<<20)
		for i := range taken {
			taken[i] = 1
		}
		return run("wait", nil)
	case "fill": // a file with that many KiB, and wait
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		if err := os.WriteFile(args[0], make([]byte, n<<10), 0o600); err != nil {
			return err
		}
		return run("wait", nil)
	case "size": // of the terminal, until it has that many columns
		return size(args[0])
	default:
		return fmt.Errorf("unknown %q", what)
	}
	return nil
}

// fork starts a process of one thread. It is no Go program that was started again: that one has several threads.
func fork() {
	pid, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
	for errno == 0 && pid == 0 {
		syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// note appends a line to a file.
func note(args []string) error {
	if len(args) == 0 {
		return nil
	}
	f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, "started"); err != nil {
		return err
	}
	return f.Close()
}

func size(columns string) error {
	for range 1000 {
		var ws struct{ rows, columns, x, y uint16 }
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, os.Stdin.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&ws)))
		if errno != 0 {
			return errno
		}
		if strconv.Itoa(int(ws.columns)) == columns {
			fmt.Printf("%d columns, %d rows\n", ws.columns, ws.rows)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("never %s columns", columns)
}
