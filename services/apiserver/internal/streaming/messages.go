package streaming

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

const (
	base64Messages = "base64.binary.k8s.io"
	binaryMessages = "binary.k8s.io"

	// messageTimeout bounds the handshake and each message of a log that is sent
	// over WebSocket.
	messageTimeout = 30 * time.Second
)

// sendMessages sends a stream over WebSocket, each part as a message as soon as
// it comes, until either side ends. An empty message comes first, so that the
// client knows that the stream stands. end ends the reading of body.
func sendMessages(w http.ResponseWriter, r *http.Request, body io.Reader, end context.CancelFunc) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{binaryMessages, base64Messages}, HandshakeTimeout: messageTimeout,
		// The request is authenticated by its token or certificate, not by a cookie
		// that another origin's page could use.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the client has its answer
	}
	socket.SetReadLimit(1 << 10)
	gone := make(chan struct{})
	go func() { // clients send nothing but control messages
		defer close(gone)
		defer end()
		for {
			if _, _, err := socket.NextReader(); err != nil {
				return
			}
		}
	}()
	defer func() { <-gone }()
	defer func() { _ = socket.Close() }()
	send := func(part []byte) bool {
		_ = socket.SetWriteDeadline(time.Now().Add(messageTimeout))
		if socket.Subprotocol() == base64Messages {
			return socket.WriteMessage(websocket.TextMessage, []byte(base64.StdEncoding.EncodeToString(part))) == nil
		}
		return socket.WriteMessage(websocket.BinaryMessage, part) == nil
	}
	buffer := make([]byte, 32<<10)
	for well := send(nil); well; {
		n, err := body.Read(buffer)
		if n > 0 {
			well = send(buffer[:n])
		}
		if err != nil {
			ending := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			_ = socket.WriteControl(websocket.CloseMessage, ending, time.Now().Add(time.Second))
			return
		}
	}
}
