package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens a log below root. It follows no symlinks and opens only regular
// files, for containers may have made what lies there.
func Open(root, path string) (*os.File, error) {
	name, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("log %s is not in %s", path, root)
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(dir, name, how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("log %s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// tailOffset is where the last lines of the file begin.
func tailOffset(file io.ReaderAt, size, lines int64) (int64, error) {
	if lines <= 0 {
		return size, nil
	}
	const block = 32 << 10
	buffer := make([]byte, block)
	found := int64(0)
	for end := size; end > 0; {
		start := max(0, end-block)
		chunk := buffer[:end-start]
		if _, err := file.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := len(chunk); at > 0; {
			at = bytes.LastIndexByte(chunk[:at], '\n')
			if at < 0 {
				break
			}
			if start+int64(at) == size-1 {
				continue // the end of the last line is not the begin of another
			}
			if found++; found == lines {
				return start + int64(at) + 1, nil
			}
		}
		end = start
	}
	return 0, nil
}

// Last is the end of a log's text, of at most that many lines and bytes.
func Last(root, path string, lines int64, most int) string {
	file, err := Open(root, path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	var out strings.Builder
	if err := Copy(file, Options{Tail: &lines}, &out, &out); err != nil {
		return ""
	}
	text := out.String()
	return text[max(0, len(text)-most):]
}
