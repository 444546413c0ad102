package bolt

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// BenchmarkWriters measures synced writes of 1 KiB from concurrent writers.
func BenchmarkWriters(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			s := mustOpen(b, Options{})
			defer func() { _ = s.Close() }()
			value := make([]byte, 1024)
			var next atomic.Int64
			b.SetParallelism(writers)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.Create(b.Context(), storage.Put{Key: fmt.Sprintf("/registry/configmaps/default/%08d", next.Add(1)), Value: value}); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}
