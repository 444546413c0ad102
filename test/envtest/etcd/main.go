// Command etcd stands in a KUBEBUILDER_ASSETS folder for the real one. It stores
// nothing: it answers what envtest asks before it starts the API server, which
// keeps its own store, and refuses everything else.
//
//	GET /health   200 {"health":"true"}
//	anything else 501
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the flags that count. The rest of etcd's flags is taken and
// forgotten: they are about storing.
type options struct{ listen []*url.URL }

func main() {
	options, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(help)
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		err = run(ctx, options)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

const help = `A stand-in for etcd that answers GET /health and stores nothing.
The API server beside it keeps a store of its own.

Flags:
  --listen-client-urls string   where to answer (default "http://localhost:2379")
  --unsafe-no-fsync             no effect, as have all other flags of etcd
`

func parse(args []string) (options, error) {
	text := "http://localhost:2379"
	for i, arg := range args {
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case name == "help" || name == "h":
			return options{}, flag.ErrHelp
		case name == "listen-client-urls" && joined:
			text = value
		case name == "listen-client-urls" && i+1 < len(args):
			text = args[i+1]
		}
	}
	var o options
	for _, one := range strings.Split(text, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "http" || u.Port() == "" {
			return options{}, fmt.Errorf("--listen-client-urls: %q is not of the form http://HOST:PORT", one)
		}
		o.listen = append(o.listen, u)
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	server := &http.Server{Handler: handler(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, len(o.listen))
	for _, u := range o.listen {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", u.Host)
		if err != nil {
			return err
		}
		go func() { failed <- server.Serve(listener) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return server.Close()
}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"health":"true"}`)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this stand-in for etcd stores nothing; the API server beside it has a store of its own", http.StatusNotImplemented)
	})
	return mux
}
