package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
)

// The protocol by which NATS asks who may connect (ADR-26 of NATS, "auth
// callout"), and the events and requests that go with it.
const (
	calloutSubject    = "$SYS.REQ.USER.AUTH"
	disconnectSubject = "$SYS.ACCOUNT.%s.DISCONNECT"
	kickSubject       = "$SYS.REQ.SERVER.%s.KICK"
	// calloutGroup shares requests out among API servers.
	calloutGroup = "sampan"
	// longestStay is when a listener has to connect anew at the latest: a server that
	// has been started again does not know who was let in before.
	longestStay = 10 * time.Minute
	// maxCallouts is how many requests are looked at at a time; NATS has the others
	// wait, for as long as its authorization timeout says.
	maxCallouts = 64
)

// keepGate answers who may listen, and ends the connections of those who may no
// longer, until ctx ends.
func (e *External) keepGate(ctx context.Context, conn *nats.Conn) {
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, maxCallouts)
	asked, err := conn.QueueSubscribe(calloutSubject, calloutGroup, func(request *nats.Msg) {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		running.Go(func() {
			defer func() { <-free }()
			if err := e.answer(ctx, request); err != nil {
				e.Log.Warn("Bus cannot say who may listen", "err", err)
			}
		})
	})
	if err != nil { // of an invalid connection only
		e.Log.Error("The external bus lets nobody in", "err", err)
		return
	}
	defer func() { _ = asked.Unsubscribe() }()
	left, err := conn.Subscribe(fmt.Sprintf(disconnectSubject, e.Account), e.left)
	if err != nil {
		e.Log.Error("The external bus does not tell who has left", "err", err)
		return
	}
	defer func() { _ = left.Unsubscribe() }()
	e.gate.watch(ctx, kicker{conn})
}

// answer says whether a connection is let in, and for which subjects.
func (e *External) answer(ctx context.Context, request *nats.Msg) error {
	asked, err := jwt.DecodeAuthorizationRequestClaims(string(request.Data))
	if err != nil {
		return fmt.Errorf("reading a request of NATS: %w", err)
	}
	answer := jwt.NewAuthorizationResponseClaims(asked.UserNkey)
	answer.Audience = asked.Server.ID
	token := asked.ConnectOptions.Token
	if token == "" {
		token = asked.ConnectOptions.Password
	}
	verified, granted := e.gate.admit(ctx, token, asked.ClientInformation.Host)
	if len(granted) == 0 {
		answer.Error = "no token for the bus, or no right to watch anything that is on it"
	} else {
		user := jwt.NewUserClaims(asked.UserNkey)
		user.Name, user.Audience = verified.User.Name, e.Account
		until := earlier(verified.Expires, time.Now().Add(longestStay))
		user.Expires = until.Unix()
		user.Pub.Deny.Add(">")
		user.Sub.Allow.Add(granted...)
		if answer.Jwt, err = user.Encode(e.Issuer); err != nil {
			return fmt.Errorf("signing: %w", err)
		}
		e.gate.remember(connection{asked.Server.ID, asked.ClientInformation.ID}, listener{token, granted, until})
	}
	signed, err := answer.Encode(e.Issuer)
	if err != nil {
		return fmt.Errorf("signing: %w", err)
	}
	return request.Respond([]byte(signed))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// left forgets a connection that has ended.
func (e *External) left(message *nats.Msg) {
	var event struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
		Client struct {
			ID uint64 `json:"id"`
		} `json:"client"`
	}
	if err := json.Unmarshal(message.Data, &event); err != nil {
		e.Log.Warn("Bus tells of a listener that has left, unreadably", "err", err)
		return
	}
	e.gate.forget(connection{event.Server.ID, event.Client.ID})
}

// kicker ends connections of external servers.
type kicker struct{ conn *nats.Conn }

// exists is true for all that have not been said to have left.
func (kicker) exists(connection) bool { return true }

func (k kicker) disconnect(c connection) error {
	// NATS does nothing for requests without a place for the answer, which nobody reads.
	return k.conn.PublishRequest(fmt.Sprintf(kickSubject, c.server), nats.NewInbox(), fmt.Appendf(nil, `{"cid":%d}`, c.id))
}
