package identities_test

import (
	"os"
	"syscall"
	"testing"
)

func owner(t testing.TB, path string) (uid, gid uint32) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("the owner of %s is not known", path)
	}
	return stat.Uid, stat.Gid
}
