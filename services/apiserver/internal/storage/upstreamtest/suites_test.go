package upstreamtest

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	upstream "k8s.io/apiserver/pkg/storage"
	suite "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/bolt"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
)

// excluded are upstream's suites that are not run, and why.
//
//   - RunTestList without what it expects of requests to etcd (watchCacheEnabled
//     is false there): upstream's caches and these ask etcd at different times.
//   - RunTestListResourceVersionMatch,
//     RunTestGuaranteedUpdateChecksStoredData, RunTestTransformationFailure,
//     RunTestWatchError, RunTestGetListWithErrorAggregation,
//     RunTestGetListWithoutErrorAggregation, RunTestWatchWithUnsafeDelete,
//     RunTestDeleteExpectedTransformOrDecodeError,
//     RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError and
//     RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError change
//     the encryption under a running store: upstream's own cache runs none of the
//     first six either. Here a value is read once, when it is committed, and one
//     that cannot be read ends the process instead of being served as an error.
//
// backend makes an empty store.
type backend struct {
	name string
	open func(t testing.TB) storage.Interface
}

func backends() []backend {
	return []backend{
		{"memory", func(testing.TB) storage.Interface { return memory.New() }},
		{"bolt", func(t testing.TB) storage.Interface {
			store, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "store.db"), NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}},
		{"etcd", func(t testing.TB) storage.Interface { return mustOpen(t, startEtcd(t)) }},
	}
}

// subject is what a suite is run on.
type subject struct {
	*Adapter
	store storage.Interface
	codec runtime.Codec
	bumps int
}

func newSubject(t *testing.T, b backend, namespaced bool) *subject {
	t.Helper()
	store := b.open(t)
	t.Cleanup(func() { _ = store.Close() })
	codec := podCodec()
	adapter, err := NewAdapter(t.Context(), store, codec, namespaced)
	if err != nil {
		t.Fatal(err)
	}
	return &subject{Adapter: adapter, store: store, codec: codec}
}

func podCodec() runtime.Codec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	pb := protobuf.NewSerializer(scheme, scheme)
	return serializer.NewCodecFactory(scheme).CodecForVersions(pb, pb, schema.GroupVersions{examplev1.SchemeGroupVersion}, nil)
}

// compact is upstream's Compaction.
func (s *subject) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
}

// increase is upstream's IncreaseRVFunc: a write outside of the cached keys.
func (s *subject) increase(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	s.bumps++
	kv, err := s.store.Create(ctx, storage.Put{Key: root + "/other/" + strconv.Itoa(s.bumps), Value: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	return kv.Revision
}

// stored is upstream's KeyValidation: what is stored has no resourceVersion.
func (s *subject) stored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	kv, err := s.store.Get(ctx, root+key, 0)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(s.codec, kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" {
		t.Errorf("%s is stored with the resourceVersion %s", key, pod.ResourceVersion)
	}
}

// UpdatePrefixTransformer is for suites that change the encryption under a
// running store, in cases that are skipped.
func (s *subject) UpdatePrefixTransformer(suite.PrefixTransformerModifier) func() { return func() {} }

// oneOf is one of upstream's suites.
type oneOf struct {
	name string
	run  func(ctx context.Context, t *testing.T, s *subject)
}

// plain is a suite that needs nothing but a store.
func plain(name string, run func(context.Context, *testing.T, upstream.Interface)) oneOf {
	return oneOf{name, func(ctx context.Context, t *testing.T, s *subject) { run(ctx, t, s) }}
}

func TestStoresPassUpstreamsSuites(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			for _, one := range append(storeSuites(), watchSuites()...) {
				t.Run(one.name, func(t *testing.T) {
					one.run(t.Context(), t, newSubject(t, b, one.name != "ClusterScopedWatch"))
				})
			}
		})
	}
}

func storeSuites() []oneOf {
	return []oneOf{
		{"Create", func(ctx context.Context, t *testing.T, s *subject) { suite.RunTestCreate(ctx, t, s, s.stored) }},
		plain("CreateWithTTL", suite.RunTestCreateWithTTL),
		plain("CreateWithKeyExist", suite.RunTestCreateWithKeyExist),
		plain("Get", suite.RunTestGet),
		plain("UnconditionalDelete", suite.RunTestUnconditionalDelete),
		plain("ConditionalDelete", suite.RunTestConditionalDelete),
		plain("DeleteWithSuggestion", suite.RunTestDeleteWithSuggestion),
		plain("DeleteWithSuggestionAndConflict", suite.RunTestDeleteWithSuggestionAndConflict),
		plain("DeleteWithConflict", suite.RunTestDeleteWithConflict),
		plain("DeleteWithSuggestionOfDeletedObject", suite.RunTestDeleteWithSuggestionOfDeletedObject),
		plain("ValidateDeletionWithSuggestion", suite.RunTestValidateDeletionWithSuggestion),
		plain("ValidateDeletionWithOnlySuggestionValid", suite.RunTestValidateDeletionWithOnlySuggestionValid),
		plain("PreconditionalDeleteWithSuggestion", suite.RunTestPreconditionalDeleteWithSuggestion),
		plain("PreconditionalDeleteWithOnlySuggestionPass", suite.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		{"List", func(ctx context.Context, t *testing.T, s *subject) {
			compact := func(ctx context.Context, t *testing.T, resourceVersion string) { // upstream's is a write, too
				s.compact(ctx, t, resourceVersion)
				s.increase(ctx, t)
			}
			suite.RunTestList(ctx, t, s, compact, false, nil)
		}},
		{"ConsistentList", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestConsistentList(ctx, t, s, s.increase, false, true, true)
		}},
		{"GetListNonRecursive", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestGetListNonRecursive(ctx, t, s.increase, s)
		}},
		plain("GetListRecursivePrefix", suite.RunTestGetListRecursivePrefix),
		{"ListContinuation", func(ctx context.Context, t *testing.T, s *subject) { suite.RunTestListContinuation(ctx, t, s, nil) }},
		{"ListPaginationRareObject", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestListPaginationRareObject(ctx, t, s, nil)
		}},
		{"ListContinuationWithFilter", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestListContinuationWithFilter(ctx, t, s, nil)
		}},
		{"ListInconsistentContinuation", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
		}},
		{"GuaranteedUpdate", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestGuaranteedUpdate(ctx, t, s, s.stored)
		}},
		plain("GuaranteedUpdateWithTTL", suite.RunTestGuaranteedUpdateWithTTL),
		plain("GuaranteedUpdateWithConflict", suite.RunTestGuaranteedUpdateWithConflict),
		plain("GuaranteedUpdateWithSuggestionAndConflict", suite.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		{"Stats", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestStats(ctx, t, s, s.codec, identity.NewEncryptCheckTransformer(), true)
		}},
		plain("ListPaging", suite.RunTestListPaging),
		plain("NamespaceScopedList", suite.RunTestNamespaceScopedList),
		{"CompactRevision", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestCompactRevision(ctx, t, s, s.increase, s.compact)
		}},
		plain("KeySchema", suite.RunTestKeySchema),
	}
}

func watchSuites() []oneOf {
	return []oneOf{
		plain("Watch", suite.RunTestWatch),
		{"WatchFromZero", func(ctx context.Context, t *testing.T, s *subject) { suite.RunTestWatchFromZero(ctx, t, s, s.compact) }},
		plain("DeleteTriggerWatch", suite.RunTestDeleteTriggerWatch),
		plain("WatchFromNonZero", suite.RunTestWatchFromNonZero),
		plain("DelayedWatchDelivery", suite.RunTestDelayedWatchDelivery),
		plain("WatchContextCancel", suite.RunTestWatchContextCancel),
		plain("WatcherTimeout", suite.RunTestWatcherTimeout),
		plain("WatchDeleteEventObjectHaveLatestRV", suite.RunTestWatchDeleteEventObjectHaveLatestRV),
		plain("WatchInitializationSignal", suite.RunTestWatchInitializationSignal),
		plain("ClusterScopedWatch", suite.RunTestClusterScopedWatch),
		plain("NamespaceScopedWatch", suite.RunTestNamespaceScopedWatch),
		{"WatchDispatchBookmarkEvents", func(ctx context.Context, t *testing.T, s *subject) {
			suite.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		}},
		plain("OptionalWatchBookmarksWithCorrectResourceVersion", suite.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	}
}
