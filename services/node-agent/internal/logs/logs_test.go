package logs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func line(second int, stream Stream, tag, text string) string {
	return fmt.Sprintf("2026-01-02T03:04:%02d.000000001Z %s %s %s\n", second, stream, tag, text)
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestReadChoosesWhatIsAskedFor(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "pod", "c", "0.log")
	mustWrite(t, path, line(1, Stdout, "F", "one")+line(2, Stderr, "F", "two")+line(3, Stdout, "P", "thr")+line(3, Stdout, "F", "ee")+
		"garbage\n"+"2026-13-45T99:99:99Z stdout F no\n"+line(4, "stdnull", "F", "no")+line(5, Stdout, "F:tag", "")+line(6, Stdout, "F", "last"))
	number := func(n int64) *int64 { return &n }
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"all", Options{}, "one\ntwo\nthree\n\nlast\n"},
		{"the last line", Options{Tail: number(1)}, "last\n"},
		{"the last two", Options{Tail: number(2)}, "\nlast\n"},
		{"none", Options{Tail: number(0)}, ""},
		{"more than there are", Options{Tail: number(100)}, "one\ntwo\nthree\n\nlast\n"},
		{"since", Options{Since: at(3)}, "three\n\nlast\n"},
		{"one stream", Options{Stream: Stderr}, "two\n"},
		{"few bytes", Options{LimitBytes: number(6)}, "one\ntw"},
		{"times", Options{Timestamps: true, Since: at(3), Tail: number(7)}, "2026-01-02T03:04:03.000000001Z three\n2026-01-02T03:04:05.000000001Z \n2026-01-02T03:04:06.000000001Z last\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Read(t.Context(), root, path, c.options, nil, &out, &out); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.want {
				t.Errorf("read %q, want %q", out.String(), c.want)
			}
		})
	}
}

func TestOpenStaysInItsDirectory(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	mustWrite(t, filepath.Join(outside, "secret"), line(1, Stdout, "F", "secret"))
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "link.log")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "dir")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		filepath.Join(root, "link.log"), filepath.Join(root, "dir", "secret"), filepath.Join(outside, "secret"), root + "/../" + filepath.Base(outside) + "/secret",
		filepath.Join(root, "folder"), filepath.Join(root, "absent"),
	} {
		if file, err := Open(root, path); err == nil {
			_ = file.Close()
			t.Errorf("%s was opened", path)
		}
	}
}

// sink can be read while it is written to.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestFollowGoesOnAcrossRotationAndEndsWithTheContainer(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "0.log")
	mustWrite(t, path, line(1, Stdout, "F", "one"))
	var alive atomic.Bool
	alive.Store(true)
	out := &sink{}
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), root, path, Options{}, &Follow{Alive: func(context.Context) bool { return alive.Load() }}, out, out)
	}()
	eventually(t, "the first line", func() bool { return out.String() == "one\n" })
	appendTo(t, path, line(2, Stdout, "F", "two")[:20])
	appendTo(t, path, line(2, Stdout, "F", "two")[20:])
	eventually(t, "the second line", func() bool { return out.String() == "one\ntwo\n" })
	appendTo(t, path, line(3, Stdout, "F", "three"))
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path, line(4, Stdout, "F", "four"))
	eventually(t, "what is in the new file", func() bool { return out.String() == "one\ntwo\nthree\nfour\n" })
	appendTo(t, path, line(5, Stdout, "F", "five"))
	alive.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasSuffix(got, "four\nfive\n") {
		t.Errorf("read %q", got)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// fakeRuntime reopens logs by making them anew.
type fakeRuntime struct {
	paths map[string]string
	fail  error
}

func (f *fakeRuntime) RunningLogs(context.Context) (map[string]string, error) { return f.paths, nil }

func (f *fakeRuntime) Reopen(_ context.Context, id string) error {
	if f.fail != nil {
		return f.fail
	}
	return os.WriteFile(f.paths[id], nil, 0o644)
}

func TestRotatorKeepsFewFiles(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "0.log")
	r := &Rotator{Root: root, Runtime: &fakeRuntime{paths: map[string]string{"id": path}}, MaxSize: 10, MaxFiles: 3, Log: slog.Default()}
	for i := range 5 {
		mustWrite(t, path, line(i, Stdout, "F", "some text"))
		// Names of former logs have seconds; let each be another one.
		if former, _ := rotated(path); len(former) > 0 {
			last := former[len(former)-1]
			stamp := time.Date(2026, 1, 1, 0, 0, i, 0, time.Local).Format(stampFormat)
			if err := os.Rename(last, path+"."+stamp); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	former, err := rotated(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(former) != 2 || !strings.HasSuffix(former[0], ".gz") || strings.HasSuffix(former[1], ".gz") {
		t.Errorf("former logs %q, want a compressed and a plain one", former)
	}
}

func TestRotatorPutsTheLogBackWhenTheRuntimeFails(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "0.log")
	text := line(1, Stdout, "F", "some text")
	mustWrite(t, path, text)
	r := &Rotator{Root: root, Runtime: &fakeRuntime{paths: map[string]string{"id": path}, fail: fmt.Errorf("no")}, MaxSize: 10, MaxFiles: 3, Log: slog.Default()}
	if err := r.Rotate(t.Context()); err == nil {
		t.Error("no error")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != text {
		t.Errorf("the log holds %q, %v", data, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(line(1, Stdout, "F", "one") + line(2, Stderr, "P", "two")))
	f.Add([]byte("2026-01-02T03:04:05Z stdout"))
	f.Add(bytes.Repeat([]byte{'x'}, 10000))
	f.Fuzz(func(t *testing.T, data []byte) {
		root := t.TempDir()
		path := filepath.Join(root, "0.log")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Read(t.Context(), root, path, Options{Timestamps: true}, nil, &out, &out); err != nil {
			t.Errorf("reading: %v", err)
		}
		var all, tail bytes.Buffer
		lines := int64(1 << 20)
		if err := Read(t.Context(), root, path, Options{}, nil, &all, &all); err != nil {
			t.Fatal(err)
		}
		if err := Read(t.Context(), root, path, Options{Tail: &lines}, nil, &tail, &tail); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(all.Bytes(), tail.Bytes()) {
			t.Errorf("the last %d lines are %q, all are %q", lines, tail.Bytes(), all.Bytes())
		}
	})
}
