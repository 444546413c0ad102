package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/apiserver/internal/audit"
)

// The ways in which events reach a sink.
const (
	auditBatch    = "batch"
	auditBlocking = "blocking"
	auditStrict   = "blocking-strict"
)

// auditVersion is the only version of events.
const auditVersion = "audit.k8s.io/v1"

// AuditOptions say what is audited and where events go.
type AuditOptions struct {
	PolicyFile string
	Log        AuditLogOptions
	Webhook    AuditWebhookOptions
}

// AuditSinkOptions are what both sinks have.
type AuditSinkOptions struct {
	Mode     string
	Version  string
	Batch    audit.BatchConfig
	Truncate bool
	MaxEvent int64 // bytes
	MaxBatch int64 // bytes
}

// AuditLogOptions are those of the log.
type AuditLogOptions struct {
	AuditSinkOptions
	Path, Format                 string
	MaxAge, MaxBackups, MaxBytes int // days, files, megabytes
	Compress                     bool
}

// AuditWebhookOptions are those of the webhook.
type AuditWebhookOptions struct {
	AuditSinkOptions
	ConfigFile string
	Backoff    time.Duration
}

func (o *AuditOptions) addFlags(fs *pflag.FlagSet) {
	const buffer, batch, wait, qps, burst, backoff = 10000, 400, 30 * time.Second, 10, 15, 10 * time.Second
	fs.StringVar(&o.PolicyFile, "audit-policy-file", "", "policy (audit.k8s.io/v1) that says which requests are audited, and how closely; without it none is")
	fs.StringVar(&o.Log.Path, "audit-log-path", "", `file that audit events are written to, "-" is standard output`)
	fs.StringVar(&o.Log.Format, "audit-log-format", "json", "form of the file's lines: json or legacy")
	fs.IntVar(&o.Log.MaxAge, "audit-log-maxage", 0, "days that rotated files are kept; 0 is without a bound")
	fs.IntVar(&o.Log.MaxBackups, "audit-log-maxbackup", 0, "rotated files that are kept; 0 is without a bound")
	fs.IntVar(&o.Log.MaxBytes, "audit-log-maxsize", 0, "megabytes after which the file is rotated; 0 is 100")
	fs.BoolVar(&o.Log.Compress, "audit-log-compress", false, "compress rotated files")
	o.Log.addSinkFlags(fs, "log", auditBlocking, audit.BatchConfig{BufferSize: buffer, MaxSize: 1})
	fs.StringVar(&o.Webhook.ConfigFile, "audit-webhook-config-file", "", "kubeconfig of a server that audit events are posted to")
	fs.DurationVar(&o.Webhook.Backoff, "audit-webhook-initial-backoff", backoff, "pause before a post is tried again the first time")
	fs.DurationVar(&o.Webhook.Backoff, "audit-webhook-batch-initial-backoff", backoff, "the same")
	_ = fs.MarkDeprecated("audit-webhook-batch-initial-backoff", "use --audit-webhook-initial-backoff") // the flag is there
	o.Webhook.addSinkFlags(fs, "webhook", auditBatch, audit.BatchConfig{BufferSize: buffer, MaxSize: batch, MaxWait: wait, Throttle: true, QPS: qps, Burst: burst})
}

func (o *AuditSinkOptions) addSinkFlags(fs *pflag.FlagSet, sink, mode string, batch audit.BatchConfig) {
	const event, list = 100 << 10, 10 << 20
	name := func(flag string) string { return "audit-" + sink + "-" + flag }
	fs.StringVar(&o.Mode, name("mode"), mode, "batch: requests do not wait for the sink; blocking: they do; blocking-strict: one that cannot be audited is refused")
	fs.StringVar(&o.Version, name("version"), auditVersion, "version of the events, which has one value")
	fs.IntVar(&o.Batch.BufferSize, name("batch-buffer-size"), batch.BufferSize, "events that may wait in mode batch; more are lost")
	fs.IntVar(&o.Batch.MaxSize, name("batch-max-size"), batch.MaxSize, "events in a batch")
	fs.DurationVar(&o.Batch.MaxWait, name("batch-max-wait"), batch.MaxWait, "time after which a smaller batch goes")
	fs.BoolVar(&o.Batch.Throttle, name("batch-throttle-enable"), batch.Throttle, "bound the batches of a second")
	fs.Float32Var(&o.Batch.QPS, name("batch-throttle-qps"), batch.QPS, "batches of a second")
	fs.IntVar(&o.Batch.Burst, name("batch-throttle-burst"), batch.Burst, "batches at once")
	fs.BoolVar(&o.Truncate, name("truncate-enabled"), false, "drop bodies of events that are too large")
	fs.Int64Var(&o.MaxEvent, name("truncate-max-event-size"), event, "bytes of an event above which it is")
	fs.Int64Var(&o.MaxBatch, name("truncate-max-batch-size"), list, "bytes of a batch")
}

func (o *AuditOptions) check() error {
	if o.PolicyFile == "" && (o.Log.Path != "" || o.Webhook.ConfigFile != "") {
		return errors.New("--audit-log-path and --audit-webhook-config-file need --audit-policy-file: without a policy nothing is audited")
	}
	if o.PolicyFile != "" && o.Log.Path == "" && o.Webhook.ConfigFile == "" {
		return errors.New("--audit-policy-file needs --audit-log-path or --audit-webhook-config-file: events would go nowhere")
	}
	if o.Log.Format != "json" && o.Log.Format != "legacy" {
		return fmt.Errorf("--audit-log-format: %q is neither json nor legacy", o.Log.Format)
	}
	if o.Log.MaxAge < 0 || o.Log.MaxBackups < 0 || o.Log.MaxBytes < 0 {
		return errors.New("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize must not be negative")
	}
	return errors.Join(o.Log.checkSink("log"), o.Webhook.checkSink("webhook"))
}

func (o *AuditSinkOptions) checkSink(sink string) error {
	modes := []string{auditBatch, auditBlocking, auditStrict}
	switch {
	case !slices.Contains(modes, o.Mode):
		return fmt.Errorf("--audit-%s-mode: %q is none of %s", sink, o.Mode, strings.Join(modes, ", "))
	case o.Version != auditVersion:
		return fmt.Errorf("--audit-%s-version: %q is not %s", sink, o.Version, auditVersion)
	case o.Mode == auditBatch && (o.Batch.BufferSize <= 0 || o.Batch.MaxSize <= 0):
		return fmt.Errorf("--audit-%[1]s-batch-buffer-size and --audit-%[1]s-batch-max-size must be positive", sink)
	case o.Mode == auditBatch && o.Batch.Throttle && (o.Batch.QPS <= 0 || o.Batch.Burst <= 0):
		return fmt.Errorf("--audit-%[1]s-batch-throttle-qps and --audit-%[1]s-batch-throttle-burst must be positive", sink)
	case o.Truncate && (o.MaxEvent <= 0 || o.MaxBatch < o.MaxEvent):
		return fmt.Errorf("--audit-%[1]s-truncate-max-event-size must be positive, and --audit-%[1]s-truncate-max-batch-size not below it", sink)
	}
	return nil
}

// newAuditor makes the configured auditor, nil without a policy. What it starts runs
// until life ends.
func (s *server) newAuditor(life context.Context, registry prometheus.Registerer) (*audit.Auditor, error) {
	o := &s.Audit
	if o.PolicyFile == "" {
		return nil, nil
	}
	measures := audit.NewMeasures(registry)
	var sinks []audit.Sink
	if o.Log.Path != "" {
		out, err := o.Log.open()
		if err != nil {
			return nil, fmt.Errorf("--audit-log-path: %w", err)
		}
		sinks = append(sinks, s.sink(life, &o.Log.AuditSinkOptions, audit.NewLog(out, o.Log.Format == "legacy", measures), measures))
	}
	if o.Webhook.ConfigFile != "" {
		client, err := auditClient(o.Webhook.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file: %w", err)
		}
		sinks = append(sinks, s.sink(life, &o.Webhook.AuditSinkOptions, audit.NewWebhook(life, client, o.Webhook.Backoff, measures), measures))
	}
	auditor, err := audit.New(o.PolicyFile, measures, sinks...)
	if err != nil {
		return nil, fmt.Errorf("--audit-policy-file: %w", err)
	}
	return auditor, nil
}

// sink puts the configured mode before a sink.
func (s *server) sink(life context.Context, o *AuditSinkOptions, sink audit.Sink, measures *audit.Measures) audit.Sink {
	if o.Truncate {
		sink = audit.Truncating(sink, o.MaxEvent, o.MaxBatch, measures)
	}
	switch o.Mode {
	case auditStrict:
		return sink
	case auditBlocking:
		return audit.Careless(sink)
	}
	batch := audit.NewBatch(sink, o.Batch, measures)
	s.running.Go(func() { batch.Run(life) })
	return audit.Careless(batch)
}

func (o *AuditLogOptions) open() (io.Writer, error) {
	if o.Path == "-" {
		return os.Stdout, nil
	}
	const mode = 0o600
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(o.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode) // what cannot be written is told now
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return &lumberjack.Logger{Filename: o.Path, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxBytes, Compress: o.Compress}, nil
}

func auditClient(kubeconfig string) (rest.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	const timeout = 10 * time.Second
	config.Timeout, config.QPS = timeout, -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return rest.UnversionedRESTClientFor(config)
}
