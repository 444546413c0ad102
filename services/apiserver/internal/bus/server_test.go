package bus_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	contract "github.com/sampan-io/sampan/proto/bus"
	"github.com/sampan-io/sampan/services/apiserver/internal/bus"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/pki"
)

func TestBusRefusesWhoHasNoToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rights.grant("nothing", "idle", time.Hour)
	for name, token := range map[string]string{"none": "", "unknown": "x", "without any right": "nothing"} {
		if _, _, err := f.dial(token); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if conn, err := nats.Connect("nats://"+f.server.Address(), nats.UserInfo("publisher", "publisher"), nats.NoReconnect()); err == nil {
		conn.Close()
		t.Error("a user and password are accepted")
	}
}

func TestListenersHearWhatTheyMayWatchOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rights.grant("s", "all", time.Hour, "services")
	f.rights.grant("a", "one", time.Hour, "services/a")
	for token, subjects := range map[string][2][]string{
		"s": {
			{contract.Pattern(services(), ""), contract.Pattern(services(), "a"), contract.HeartbeatSubject(services(), ""), contract.HeartbeatSubject(services(), "a"), contract.Subject(services(), "b", "x")},
			{"sampan.>", ">", contract.Pattern(nodes(), ""), contract.HeartbeatSubject(nodes(), ""), "sampan.watch.v1.core.*.>", "$SYS.>", "_INBOX.x"},
		},
		"a": {
			{contract.Pattern(services(), "a"), contract.HeartbeatSubject(services(), "a")},
			{contract.Pattern(services(), ""), contract.Pattern(services(), "b"), contract.HeartbeatSubject(services(), ""), contract.HeartbeatSubject(services(), "b"), "sampan.heartbeat.v1.core.services.*"},
		},
	} {
		conn, problems := f.mustDial(token)
		for _, subject := range subjects[0] {
			mustSubscribe(t, conn, subject)
		}
		if len(problems) > 0 {
			t.Errorf("%s: refused: %v", token, <-problems)
		}
		for _, subject := range subjects[1] {
			mustSubscribe(t, conn, subject)
			select {
			case err := <-problems:
				if !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("%s: subscribing to %s: %v", token, subject, err)
				}
			case <-time.After(patience):
				t.Errorf("%s: may subscribe to %s", token, subject)
			}
		}
	}
}

func TestListenersPublishNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rights.grant("s", "all", time.Hour, "services", "nodes")
	conn, problems := f.mustDial("s")
	f.await()
	subscription := mustSubscribe(t, conn, contract.Pattern(services(), ""))
	forged := contract.Subject(services(), "a", "forged")
	for _, subject := range []string{forged, contract.HeartbeatSubject(services(), ""), "x"} {
		if err := conn.Publish(subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-problems:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("publishing to %s: %v", subject, err)
			}
		case <-time.After(patience):
			t.Errorf("may publish to %s", subject)
		}
	}
	mustCreate(t, f.store, "/registry/services/specs/a/real", "v")
	var event contract.Event
	if subject := mustReceive(t, subscription, &event); subject == forged || event.Name != "real" {
		t.Errorf("heard %s", subject)
	}
}

func TestConnectionEndsWithItsRights(t *testing.T) {
	for name, take := range map[string]func(f *fixture){
		"token": func(f *fixture) { f.rights.revoke("s") },
		"right": func(f *fixture) { f.rights.grant("s", "all", time.Hour) },
		"part":  func(f *fixture) { f.rights.grant("s", "all", time.Hour, "services/a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.rights.grant("s", "all", time.Hour, "services")
			f.rights.grant("other", "other", time.Hour, "services")
			conn, _ := f.mustDial("s")
			other, _ := f.mustDial("other")
			take(f)
			eventually(t, "the connection is closed", conn.IsClosed)
			if other.IsClosed() {
				t.Error("another's connection is closed, too")
			}
		})
	}
}

func TestConnectionEndsWhenItsTokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rights.grant("s", "all", 300*time.Millisecond, "services")
	conn, _ := f.mustDial("s")
	eventually(t, "the connection is closed", conn.IsClosed)
}

func TestTakenAddressIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.config()
	config.Address = f.server.Address()
	_, err := bus.NewServer(config)
	if err == nil || !strings.Contains(err.Error(), config.Address) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutTLSLoopbackOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, address := range []string{"0.0.0.0:0", ":0", "localhost:0", "127.0.0.1", "127.0.0.1:x"} {
		config := f.config()
		config.Address = address
		if _, err := bus.NewServer(config); err == nil {
			t.Errorf("%s is served without TLS", address)
		}
	}
}

func TestBusSpeaksTLS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rights.grant("s", "all", time.Hour, "services")
	dir := t.TempDir()
	authority, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := filepath.Join(dir, "bus.crt"), filepath.Join(dir, "bus.key")
	if _, err := authority.Ensure(certificate, key, pki.Request{CommonName: "bus", Server: true, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}); err != nil {
		t.Fatal(err)
	}
	config := f.config()
	if config.TLS, err = component.ServerTLS(certificate, key, ""); err != nil {
		t.Fatal(err)
	}
	config.Address = "0.0.0.0:0"
	server, err := bus.NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, bus.NewPublisher(f.store, topics(), f.log())) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	_, port, _ := net.SplitHostPort(server.Address())
	pool, err := component.CertPool(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect("tls://127.0.0.1:"+port, nats.Token("s"), nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := nats.Connect("nats://127.0.0.1:"+port, nats.Token("s"), nats.NoReconnect(), nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12})); err == nil {
		t.Error("an unknown authority is believed")
	}
}
