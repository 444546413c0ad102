// Package upstreamtest holds what the store is tested with besides its own
// suite: a real etcd inside the test, and upstream's suites. It is a module of
// its own, so that the API server depends on neither.
package upstreamtest

import (
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdServer is an etcd of one member that can be stopped and started again.
type etcdServer struct {
	t       testing.TB
	dir     string
	client  url.URL // where it answers; the port is chosen at the first start
	running *embed.Etcd
}

// startEtcd runs an etcd until the test ends, and returns its client URL.
func startEtcd(t testing.TB) string {
	t.Helper()
	return newEtcd(t).client.String()
}

func newEtcd(t testing.TB) *etcdServer {
	t.Helper()
	s := &etcdServer{t: t, dir: t.TempDir(), client: url.URL{Scheme: "http", Host: "127.0.0.1:0"}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *etcdServer) start() {
	s.t.Helper()
	config := embed.NewConfig()
	config.Dir = s.dir
	config.LogLevel = "panic"
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 10, 100
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{s.client}, []url.URL{s.client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		s.t.Fatalf("starting etcd: %v", err)
	}
	s.running = etcd
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		s.t.Fatal("etcd is not ready after 20 s")
	}
	s.client.Host = etcd.Clients[0].Addr().String()
}

func (s *etcdServer) stop() {
	if s.running != nil {
		s.running.Close()
		s.running = nil
	}
}
