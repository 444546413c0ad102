package handlers

import (
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sampan-io/sampan/services/apiserver/internal/negotiation"
)

// subprotocols that browsers' clients name beside their token. All mean the same
// here: one message an event.
func subprotocols() []string { return []string{"base64.binary.k8s.io", "binary.k8s.io"} }

// upgrade makes the stream one of WebSocket messages. It says whether the
// handshake succeeded; otherwise the client has its answer. The function that it
// returns closes the connection.
func (s *stream) upgrade(gone func()) (closing func(), ok bool) {
	upgrader := websocket.Upgrader{
		Subprotocols: subprotocols(), HandshakeTimeout: writeTimeout,
		// The request is authenticated by its token or certificate, not by a cookie
		// that another origin's page could use.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	socket, err := upgrader.Upgrade(s.w, s.r, nil)
	if err != nil {
		return nil, false
	}
	socket.SetReadLimit(1 << 10)
	s.socket = socket
	done := make(chan struct{})
	go func() { // clients send nothing but control messages
		defer close(done)
		defer gone()
		for {
			if _, _, err := socket.NextReader(); err != nil {
				return
			}
		}
	}()
	return func() {
		end := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		_ = socket.WriteControl(websocket.CloseMessage, end, time.Now().Add(time.Second))
		_ = socket.Close()
		<-done
	}, true
}

// message sends one event as a message of its own.
func (s *stream) message(data []byte) bool {
	kind := websocket.TextMessage
	if s.out.Format == negotiation.Protobuf || s.out.Format == negotiation.CBOR {
		kind = websocket.BinaryMessage
	}
	_ = s.socket.SetWriteDeadline(time.Now().Add(writeTimeout))
	return s.socket.WriteMessage(kind, data) == nil
}
