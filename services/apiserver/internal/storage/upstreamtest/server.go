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

// startEtcd runs an etcd of one member until the test ends, and returns its
// client URL.
func startEtcd(t testing.TB) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.LogLevel = "panic"
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 10, 100
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatalf("starting etcd: %v", err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		t.Fatal("etcd is not ready after 20 s")
	}
	return "http://" + etcd.Clients[0].Addr().String()
}
