// Package component is the shell that every Sampan service runs in: flags with
// environment variables, logging, signals, health, metrics and TLS serving.
//
// A service's main.go calls Main with its Service; everything else about the
// service is wired in its own app package.
package component

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// Exit codes of every service.
const (
	ExitOK      = 0
	ExitFailure = 1 // the service ran and ended with an error
	ExitUsage   = 2 // flags or configuration were refused; nothing was started
)

// Service is one of Sampan's programs.
type Service interface {
	// AddFlags registers the service's flags under their upstream names where
	// upstream has them.
	AddFlags(fs *pflag.FlagSet)
	// Complete fills in derived values and refuses contradictions. It is called
	// after parsing; an error ends the program with ExitUsage.
	Complete() error
	// Run serves until ctx ends and has joined every goroutine it started when
	// it returns. A nil error is a clean stop.
	Run(ctx context.Context, log *slog.Logger) error
}

// UsageError marks an error found while running that is the operator's to mend
// (a taken port, a missing tool). Main prints it as one line and exits ExitUsage.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Main runs a service to its end and exits the process. Name is the program's
// name ("apiserver"), which prefixes environment variables: the flag
// --etcd-servers of apiserver is also SAMPAN_APISERVER_ETCD_SERVERS. A flag on
// the command line wins over the environment.
func Main(name, about string, service Service) {
	os.Exit(run(name, about, service, os.Args[1:], os.LookupEnv))
}

func run(name, about string, service Service, args []string, lookup func(string) (string, bool)) int {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SortFlags = true
	fs.Usage = func() {
		fmt.Fprintf(os.Stderr, "%s\n\nUsage:\n  %s [flags]\n\nEvery flag is also read from the environment as %s<FLAG>.\n\nFlags:\n%s", about, name, envPrefix(name), fs.FlagUsages())
	}
	logging := &LoggingOptions{}
	logging.AddFlags(fs)
	service.AddFlags(fs)
	showVersion := fs.Bool("version", false, "print the version and exit")

	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return ExitOK
		}
		fmt.Fprintf(os.Stderr, "%s: %v (see %s --help)\n", name, err, name)
		return ExitUsage
	}
	if rest := fs.Args(); len(rest) > 0 {
		fmt.Fprintf(os.Stderr, "%s: unexpected argument %q (see %s --help)\n", name, rest[0], name)
		return ExitUsage
	}
	if *showVersion {
		fmt.Println(name, Version().GitVersion)
		return ExitOK
	}
	if err := ApplyEnvironment(fs, name, lookup); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return ExitUsage
	}
	log, err := logging.New(os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return ExitUsage
	}
	log = log.With("service", name)
	if err := service.Complete(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return ExitUsage
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once: NotifyContext stops listening
	// after the first, so the default action applies again.
	context.AfterFunc(ctx, stop)

	if err := service.Run(ctx, log); err != nil && !errors.Is(err, context.Canceled) {
		var usage *UsageError
		if errors.As(err, &usage) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			return ExitUsage
		}
		log.Error("Service ended", "err", err)
		return ExitFailure
	}
	return ExitOK
}

// ApplyEnvironment sets each flag of fs that was not given on the command line
// from its environment variable, and refuses values that do not parse.
func ApplyEnvironment(fs *pflag.FlagSet, name string, lookup func(string) (string, bool)) error {
	var first error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || first != nil {
			return
		}
		key := envPrefix(name) + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := lookup(key); ok {
			if err := fs.Set(f.Name, value); err != nil {
				first = fmt.Errorf("environment variable %s: %w", key, err)
			}
		}
	})
	return first
}

func envPrefix(name string) string {
	return "SAMPAN_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_"
}
