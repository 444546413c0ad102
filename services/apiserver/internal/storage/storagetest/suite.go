// Package storagetest is the suite that every backend of the store passes.
package storagetest

import (
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Run runs the suite; open makes an empty store, closed by the suite.
func Run(t *testing.T, open func(t testing.TB) storage.Interface) {
	tests := []struct {
		name string
		run  func(t *testing.T, s storage.Interface)
	}{
		{"CreateGetUpdateDelete", testLifeOfAKey},
		{"ConditionsThatDoNotHoldChangeNothing", testConditions},
		{"EveryWriteHasARevisionOfItsOwn", testRevisions},
		{"ListsStayInsideTheirPrefix", testPrefixes},
		{"ListsArePaged", testPages},
		{"SinksSeeAllBeforeWritersAreAnswered", testSinks},
		{"AttachStartsFromTheLog", testAttachFromLog},
		{"CompactionKeepsWhatLives", testCompaction},
		{"LargeValuesAreRefused", testLarge},
		{"KeysExpire", testExpiry},
		{"AttachedInTheMiddleOfWritesNothingIsMissed", testAttachWhileWriting},
		{"ClosedStoresRefuse", testClosed},
		{"ModelAgrees", testModel},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			defer func() { _ = s.Close() }()
			test.run(t, s)
		})
	}
}

func put(key, value string) storage.Put { return storage.Put{Key: key, Value: []byte(value)} }

func mustCreate(t testing.TB, s storage.Interface, key, value string) storage.KeyValue {
	t.Helper()
	kv, err := s.Create(t.Context(), put(key, value))
	if err != nil {
		t.Fatal(err)
	}
	return kv
}
