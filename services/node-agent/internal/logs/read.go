package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options choose what of a log is read.
type Options struct {
	Tail       *int64    // only that many of the last lines
	LimitBytes *int64    // at most that many bytes
	Since      time.Time // only what is from then or later
	Timestamps bool      // each line begins with its time
	Stream     Stream    // only that one; "" is both
}

// Follow is how to go on when the end of the log is reached.
type Follow struct {
	// Alive tells whether more may be written. It is asked now and then, and the
	// log is read to its end after it has said no.
	Alive func(ctx context.Context) bool
}

// errEnough ends reading at the limit of bytes.
var errEnough = errors.New("enough")

// Copy writes a log as it is now.
func Copy(file *os.File, options Options, stdout, stderr io.Writer) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if options.Tail != nil {
		start, err := tailOffset(file, info.Size(), *options.Tail)
		if err != nil {
			return fmt.Errorf("finding the last lines of %s: %w", file.Name(), err)
		}
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return err
		}
	}
	w := newWriter(options, stdout, stderr)
	err = w.drain(bufio.NewReader(file))
	if err == nil {
		err = w.rest()
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Read writes a log below root and goes on as follow says, across rotations. A
// nil follow reads what is there.
func Read(ctx context.Context, root, path string, options Options, follow *Follow, stdout, stderr io.Writer) error {
	file, err := Open(root, path)
	if err != nil {
		return err
	}
	if follow == nil {
		defer func() { _ = file.Close() }()
		return Copy(file, options, stdout, stderr)
	}
	f := follower{root: root, path: path, file: file, follow: follow, w: newWriter(options, stdout, stderr)}
	defer func() { _ = f.file.Close() }()
	err = f.run(ctx, options)
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type follower struct {
	root, path string
	file       *os.File
	follow     *Follow
	w          *writer
}

func (f *follower) run(ctx context.Context, options Options) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching log: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("watching log: %w", err)
	}
	if options.Tail != nil {
		info, err := f.file.Stat()
		if err != nil {
			return err
		}
		start, err := tailOffset(f.file, info.Size(), *options.Tail)
		if err != nil {
			return err
		}
		if _, err := f.file.Seek(start, io.SeekStart); err != nil {
			return err
		}
	}
	reader := bufio.NewReader(f.file)
	for {
		alive := f.follow.Alive(ctx)
		if err := f.w.drain(reader); err != nil {
			return err
		}
		rotated, err := f.reopen()
		if err != nil {
			return err
		}
		if rotated {
			reader = bufio.NewReader(f.file)
			continue
		}
		if !alive {
			return f.w.rest()
		}
		if err := await(ctx, watcher, f.path); err != nil {
			return err
		}
	}
}

// reopen goes on to the new file when the log has been rotated.
func (f *follower) reopen() (bool, error) {
	now, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // between the two steps of a rotation, or removed
	}
	if err != nil {
		return false, err
	}
	old, err := f.file.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(now, old) {
		return false, nil
	}
	file, err := Open(f.root, f.path)
	if err != nil {
		return false, err
	}
	_ = f.file.Close()
	f.file = file
	return true, nil
}

// await waits until the log may have more, or a while is over.
func await(ctx context.Context, watcher *fsnotify.Watcher, path string) error {
	const patience = 500 * time.Millisecond
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-watcher.Events:
			if event.Name == path {
				return nil
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watching log: %w", err)
		case <-timer.C:
			return nil
		}
	}
}

// writer hands lines out as the options say.
type writer struct {
	options Options
	out     map[Stream]io.Writer
	left    int64 // bytes that may be written still; below 0 is no limit
	begun   map[Stream]bool
	pending []byte // the begin of a line whose end is not written yet
}

func newWriter(options Options, stdout, stderr io.Writer) *writer {
	w := &writer{options: options, out: map[Stream]io.Writer{Stdout: stdout, Stderr: stderr}, left: -1, begun: map[Stream]bool{}}
	if options.LimitBytes != nil {
		w.left = *options.LimitBytes
	}
	return w
}

// maxEntry bounds the memory for one entry; runtimes write far shorter ones.
const maxEntry = 1 << 20

// drain handles all whole entries.
func (w *writer) drain(reader *bufio.Reader) error {
	for {
		part, err := reader.ReadSlice('\n')
		if len(w.pending)+len(part) > maxEntry {
			w.pending = nil
			if err == nil || !errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			part = nil
		}
		switch {
		case err == nil && len(w.pending) == 0:
			if err := w.entry(part); err != nil {
				return err
			}
		case err == nil:
			whole := append(w.pending, part...)
			w.pending = nil
			if err := w.entry(whole); err != nil {
				return err
			}
		case errors.Is(err, bufio.ErrBufferFull):
			w.pending = append(w.pending, part...)
		case errors.Is(err, io.EOF):
			w.pending = append(w.pending, part...)
			return nil
		default:
			return fmt.Errorf("reading log: %w", err)
		}
	}
}

// rest handles an entry whose newline was never written.
func (w *writer) rest() error {
	if len(w.pending) == 0 {
		return nil
	}
	last := w.pending
	w.pending = nil
	return w.entry(last)
}

func (w *writer) entry(data []byte) error {
	line, err := Parse(data)
	if err != nil {
		return nil // what is not the runtime's is left out
	}
	if line.Time.Before(w.options.Since) || (w.options.Stream != "" && line.Stream != w.options.Stream) {
		return nil
	}
	var text []byte
	if w.options.Timestamps && !w.begun[line.Stream] {
		stamp, _, _ := bytes.Cut(data, []byte{' '})
		text = append(append(text, stamp...), ' ')
	}
	text = append(text, line.Text...)
	if !line.Partial {
		text = append(text, '\n')
	}
	w.begun[line.Stream] = line.Partial
	return w.write(line.Stream, text)
}

func (w *writer) write(stream Stream, text []byte) error {
	enough := w.left >= 0 && int64(len(text)) >= w.left
	if enough {
		text = text[:w.left]
	}
	if out := w.out[stream]; out != nil && len(text) > 0 {
		n, err := out.Write(text)
		if err != nil {
			return err
		}
		if w.left >= 0 {
			w.left -= int64(n)
		}
	}
	if enough {
		return errEnough
	}
	return nil
}
