// Command abrupt is a web server of the end-to-end tests that ends the moment it
// is told to, whatever it is doing.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	host, _ := os.Hostname()
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s version %s\n", host, os.Getenv("VERSION"))
	})}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
