package app_test

import (
	"testing"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestServerIsReadyAndStopsCleanly(t *testing.T) {
	start := time.Now()
	s := testserver.Start(t)
	t.Logf("ready after %v", time.Since(start))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}
