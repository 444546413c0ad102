package memory_test

import (
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/storagetest"
)

func TestSuite(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storage.Interface { return memory.New() })
}
