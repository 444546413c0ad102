// Package logs reads and rotates the log files that the runtime writes in the
// CRI's form, a line each:
//
//	2016-10-06T00:17:09.669794202Z stdout F the text
//
// The tag is F for a whole line and P for a part of one that goes on. What the
// files hold comes from containers and may be anything.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Stream is where a container has written to.
type Stream string

// The streams of a container.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Line is one entry of a log. Text shares memory with what was parsed.
type Line struct {
	Time    time.Time
	Stream  Stream
	Partial bool // the next entry of the stream goes on with it
	Text    []byte
}

var errMalformed = errors.New("malformed log line")

// Parse reads one entry, with or without its newline.
func Parse(data []byte) (Line, error) {
	var line Line
	data = bytes.TrimSuffix(data, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(data, []byte{' '})
	if !ok {
		return line, fmt.Errorf("%w: no time", errMalformed)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return line, fmt.Errorf("%w: time %q", errMalformed, clip(stamp))
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	line.Time, line.Stream = at, Stream(stream)
	if !ok || (line.Stream != Stdout && line.Stream != Stderr) {
		return line, fmt.Errorf("%w: stream %q", errMalformed, clip(stream))
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return line, fmt.Errorf("%w: no tag", errMalformed)
	}
	// Tags are separated by colons; the first says whether the line is whole.
	first, _, _ := bytes.Cut(tags, []byte{':'})
	line.Partial = string(first) == "P"
	line.Text = text
	return line, nil
}

func clip(text []byte) []byte {
	const most = 64
	return text[:min(len(text), most)]
}
