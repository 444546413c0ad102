package component

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// LoggingOptions says how a service logs.
type LoggingOptions struct {
	Verbosity int    // klog's scale: 0 is quiet, 2 is the default, 4 and above debug
	Format    string // "text" or "json"
}

// AddFlags registers --v and --logging-format.
func (o *LoggingOptions) AddFlags(fs *pflag.FlagSet) {
	fs.IntVarP(&o.Verbosity, "v", "v", 2, "log verbosity; 4 and above log debugging detail")
	fs.StringVar(&o.Format, "logging-format", "text", `log format, "text" or "json"`)
}

// New makes the one logger of a process and routes klog, which client-go logs
// through, into it.
func (o *LoggingOptions) New(w io.Writer) (*slog.Logger, error) {
	level := slog.LevelInfo
	if o.Verbosity >= 4 {
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch o.Format {
	case "text":
		handler = slog.NewTextHandler(w, options)
	case "json":
		handler = slog.NewJSONHandler(w, options)
	default:
		return nil, fmt.Errorf("--logging-format: %q is neither text nor json", o.Format)
	}
	klog.SetLoggerWithOptions(logr.FromSlogHandler(handler), klog.ContextualLogger(true))
	return slog.New(handler), nil
}
