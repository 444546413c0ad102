package main

import (
	"slices"
	"testing"
)

func TestTranslateSwapsEtcdForAStore(t *testing.T) {
	store := []string{"--data-dir=/tmp/c/sampan-store", "--unsafe-no-fsync", "--nats-listen-address=none", "--cluster-dns-service=false"}
	for _, args := range [][]string{
		{"--cert-dir=/tmp/c", "--etcd-servers=http://127.0.0.1:1", "--secure-port=1"},
		{"--cert-dir=/tmp/c", "--etcd-servers", "http://127.0.0.1:1", "--etcd-prefix", "/x", "--secure-port=1"},
		{"--cert-dir=/tmp/c", "-etcd-servers", "--secure-port=1"},
	} {
		got, err := translate(args)
		want := append([]string{"--cert-dir=/tmp/c", "--secure-port=1"}, store...)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q became %q, %v; want %q", args, got, err, want)
		}
	}
	got, err := translate([]string{"--cert-dir", "/tmp/c"})
	if want := append([]string{"--cert-dir", "/tmp/c"}, store...); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := translate([]string{"--secure-port=1"}); err == nil {
		t.Error("no --cert-dir was accepted")
	}
}
