// Tool is the program of the test images: each subcommand is one behaviour that a
// test needs of a container.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		forever()
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "forever":
		forever()
	case "echo":
		fmt.Println(strings.Join(args, " "))
	case "stderr":
		fmt.Fprintln(os.Stderr, strings.Join(args, " "))
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "id":
		groups, _ := os.Getgroups()
		fmt.Println(os.Getuid(), os.Getgid(), groups)
	case "read":
		copyFile(args[0])
	case "write":
		check(os.WriteFile(args[0], []byte(args[1]), 0o644))
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "lines":
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			fmt.Println("got", lines.Text())
		}
		fmt.Println("end of input")
	case "graceful":
		graceful()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "hog":
		hog()
	case "child-hog":
		child := exec.Command("/tool", "hog")
		fmt.Println("child:", child.Run())
	case "fork-forever":
		check(exec.Command("/tool", "forever", "child").Start())
		fmt.Println("forked")
		forever()
	case "fill":
		fill(args[0], args[1])
	case "files":
		files(args[0], args[1])
	case "chatter":
		chatter(args[0])
	case "stay":
		stay(args)
	case "health":
		serveHealth(args[0], args[1])
	case "hold":
		hold(args[0])
	case "listen":
		listen(args[0])
	case "size":
		size()
	case "hostname":
		name, _ := os.Hostname()
		fmt.Println(name)
	case "socket":
		family, _ := strconv.Atoi(args[0])
		_, err := syscall.Socket(family, syscall.SOCK_SEQPACKET, 0)
		fmt.Println(err)
	case "pid":
		fmt.Println(os.Getpid())
	case "fetch":
		resp, err := http.Get(args[0])
		check(err)
		io.Copy(os.Stdout, resp.Body)
	case "processes":
		processes()
	case "bomb":
		bomb()
	case "tick":
		for i := 0; ; i++ {
			fmt.Println("tick", i)
			time.Sleep(20 * time.Millisecond)
		}
	default:
		fmt.Fprintln(os.Stderr, "unknown subcommand", os.Args[1])
		os.Exit(2)
	}
}

func forever() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGTERM)
	<-ch
	os.Exit(143)
}

func graceful() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGUSR1)
	fmt.Println("ready")
	fmt.Println("signal", <-ch)
	os.Exit(7)
}

func hog() {
	var held [][]byte
	for {
		block := make([]byte, 4<<20)
		for i := range block {
			block[i] = 1
		}
		held = append(held, block)
	}
}

func copyFile(path string) {
	file, err := os.Open(path)
	check(err)
	_, err = io.Copy(os.Stdout, file)
	check(err)
}

func listen(address string) {
	listener, err := net.Listen("tcp", address)
	check(err)
	fmt.Println("listening")
	http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintln(w, "hello from", name)
	}))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func processes() {
	entries, err := os.ReadDir("/proc")
	check(err)
	for _, entry := range entries {
		if cmdline, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline"); err == nil {
			fmt.Println(entry.Name(), strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
}

func bomb() {
	for {
		if err := exec.Command("/tool", "forever").Start(); err != nil {
			fmt.Println("could not fork:", err)
			forever()
		}
	}
}
