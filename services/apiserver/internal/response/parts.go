package response

import (
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// gzipThreshold is the smallest body that is compressed, in bytes.
const gzipThreshold = 128 << 10

// Parts answers with a body that is made of parts, which are not copied
// together. A large one is compressed when the client accepts it and is not on
// this host, where compression only costs.
func Parts(w http.ResponseWriter, r *http.Request, code int, mediaType string, parts [][]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	header := w.Header()
	header.Set("Content-Type", mediaType)
	header.Set("Cache-Control", "no-cache, private")
	compress := size > gzipThreshold && acceptsGzip(r) && !local(r)
	if compress {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
	} else {
		header.Set("Content-Length", strconv.Itoa(size))
	}
	w.WriteHeader(code)
	if r.Method == http.MethodHead {
		return
	}
	if !compress {
		writeAll(w, parts)
		return
	}
	writer, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return
	}
	writeAll(writer, parts)
	_ = writer.Close()
}

// chunk is how much is written at a time: small parts are gathered.
const chunk = 32 << 10

func writeAll(w io.Writer, parts [][]byte) {
	if len(parts) == 1 {
		_, _ = w.Write(parts[0])
		return
	}
	buffer := make([]byte, 0, chunk)
	for _, part := range parts {
		if len(buffer)+len(part) > chunk {
			if _, err := w.Write(buffer); err != nil {
				return
			}
			buffer = buffer[:0]
		}
		if len(part) < chunk {
			buffer = append(buffer, part...)
			continue
		}
		if _, err := w.Write(part); err != nil {
			return
		}
	}
	_, _ = w.Write(buffer)
}

func acceptsGzip(r *http.Request) bool {
	for _, value := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(value) == "gzip" {
			return true
		}
	}
	return false
}

func local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
