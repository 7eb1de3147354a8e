// Program prints its arguments and ends; with the argument pause it waits for a signal to end.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	fmt.Println(os.Args[1:])
	if slices.Contains(os.Args, "pause") {
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM, os.Interrupt)
		<-end
	}
}
