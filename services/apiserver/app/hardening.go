package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// HardeningOptions narrow how requests are served.
type HardeningOptions struct {
	CipherSuites    []string
	Curves          []int32
	NoHTTP2         bool
	ShutdownDelay   time.Duration
	StrictTransport []string
}

func (o *HardeningOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", nil, "cipher suites of TLS 1.2 that are offered, by Go's names; empty is Go's choice")
	fs.Int32SliceVar(&o.Curves, "tls-curve-preferences", nil, "key exchanges that are offered, by the numbers of Go's tls.CurveID; empty is Go's choice")
	fs.BoolVar(&o.NoHTTP2, "disable-http2-serving", false, "serve HTTP/1.1 only")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", 0, "how long to go on serving, not ready, after the signal to stop")
	fs.StringSliceVar(&o.StrictTransport, "strict-transport-security-directives", nil, "directives of the header Strict-Transport-Security: max-age=SECONDS, includeSubDomains, preload; empty sends none")
}

func (o *HardeningOptions) check() error {
	if _, err := o.suites(); err != nil {
		return err
	}
	if o.ShutdownDelay < 0 {
		return fmt.Errorf("--shutdown-delay-duration: %s is negative", o.ShutdownDelay)
	}
	for _, directive := range o.StrictTransport {
		age, isAge := strings.CutPrefix(directive, "max-age=")
		if _, err := strconv.ParseUint(age, 10, 63); isAge && err == nil {
			continue
		}
		if directive != "includeSubDomains" && directive != "preload" {
			return fmt.Errorf("--strict-transport-security-directives: %q is not one of max-age=SECONDS, includeSubDomains, preload", directive)
		}
	}
	return nil
}

// suites are the ids of the cipher suites.
func (o *HardeningOptions) suites() ([]uint16, error) {
	known := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	var ids []uint16
	for _, name := range o.CipherSuites {
		i := slices.IndexFunc(known, func(suite *tls.CipherSuite) bool { return suite.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--tls-cipher-suites: %q is not known", name)
		}
		ids = append(ids, known[i].ID)
	}
	return ids, nil
}

// apply narrows what is offered to clients.
func (o *HardeningOptions) apply(config *tls.Config) error {
	var err error
	if config.CipherSuites, err = o.suites(); err != nil {
		return err
	}
	for _, curve := range o.Curves {
		config.CurvePreferences = append(config.CurvePreferences, tls.CurveID(curve))
	}
	if o.NoHTTP2 {
		config.NextProtos = []string{"http/1.1"}
	}
	return nil
}

// strictTransport adds the header to every answer.
func (o *HardeningOptions) strictTransport(next http.Handler) http.Handler {
	if len(o.StrictTransport) == 0 {
		return next
	}
	value := strings.Join(o.StrictTransport, "; ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Strict-Transport-Security", value)
		next.ServeHTTP(w, r)
	})
}

// delayed ends a while after ctx, so that whoever balances load sees in time
// that the server is not ready any more.
func delayed(ctx context.Context, delay time.Duration) (context.Context, context.CancelFunc) {
	if delay == 0 {
		return context.WithCancel(ctx)
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(delay, cancel) })
	return later, func() { unhook(); cancel() }
}
