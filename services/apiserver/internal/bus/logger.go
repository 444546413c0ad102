package bus

import (
	"fmt"
	"log/slog"
)

// logger passes what the embedded server has to say on. What is fatal to it is
// not so to the API server.
type logger struct {
	log   *slog.Logger
	fatal chan string
}

func (l *logger) Fatalf(format string, v ...any) {
	problem := fmt.Sprintf(format, v...)
	select {
	case l.fatal <- problem: // while it starts
	default:
		l.log.Error("The bus has failed", "problem", problem)
	}
}

func (l *logger) Errorf(format string, v ...any) {
	// Of connections: refused tokens, broken TLS, subjects that are not theirs. A
	// listener can cause as many as it likes.
	l.log.Debug("Bus reports a problem", "problem", fmt.Sprintf(format, v...))
}

func (l *logger) Warnf(format string, v ...any) {
	l.log.Warn("Bus warns", "warning", fmt.Sprintf(format, v...))
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}
