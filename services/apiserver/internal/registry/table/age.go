package table

import (
	"bytes"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Rows are kept from one list to the next, but the ages in them go on. So a cell
// has the time itself, between two marks, and becomes an age when it is sent.
const (
	mark = "\x00"
	// jsonMark is the mark within a string in JSON.
	jsonMark = `\u0000`
)

// Since is how long ago t was, in kubectl's short form, once Resolve or
// AppendResolved have seen it.
func Since(t metav1.Time) string { return since(t.Time) }

// SinceMicro is Since for a time with microseconds.
func SinceMicro(t metav1.MicroTime) string { return since(t.Time) }

func since(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return mark + strconv.FormatInt(t.UnixNano(), 10) + mark
}

// Resolve makes the times in cells ages at the moment.
func Resolve(cells []any, now time.Time) []any {
	resolved := make([]any, len(cells))
	for i, cell := range cells {
		resolved[i] = cell
		if text, is := cell.(string); is {
			resolved[i] = string(appendResolved(nil, []byte(text), mark, now))
		}
	}
	return resolved
}

// AppendResolved appends cells in JSON, their times made ages at the moment.
func AppendResolved(to, cells []byte, now time.Time) []byte {
	return appendResolved(to, cells, jsonMark, now)
}

func appendResolved(to, text []byte, mark string, now time.Time) []byte {
	for {
		before, rest, found := bytes.Cut(text, []byte(mark))
		if !found {
			return append(to, text...)
		}
		number, after, closed := bytes.Cut(rest, []byte(mark))
		nanos, err := strconv.ParseInt(string(number), 10, 64)
		if !closed || err != nil {
			to, text = append(append(to, before...), mark...), rest // not a time: a mark of the object's own
			continue
		}
		to = append(append(to, before...), duration.HumanDuration(now.Sub(time.Unix(0, nanos)))...)
		text = after
	}
}
