package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// size prints the size of its terminal, and again each time that it changes.
func size() {
	changes := make(chan os.Signal, 8)
	signal.Notify(changes, syscall.SIGWINCH)
	for {
		var size struct{ rows, cols, x, y uint16 }
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, os.Stdout.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
		if errno != 0 {
			fmt.Println(errno)
			os.Exit(1)
		}
		fmt.Printf("size %dx%d\n", size.rows, size.cols)
		<-changes
	}
}
