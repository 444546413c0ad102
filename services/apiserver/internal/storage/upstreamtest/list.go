package upstreamtest

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/storage"

	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// GetList implements upstream's interface.
func (a *Adapter) GetList(ctx context.Context, key string, opts upstream.ListOptions, out runtime.Object) error {
	prefix, err := upstream.PrepareKey(resource, key, opts.Recursive)
	if err != nil {
		return err
	}
	revision, continueKey, err := upstream.ValidateListOptions(prefix, a.version, opts)
	if err != nil {
		return err
	}
	o := watch.ListOptions{Labels: opts.Predicate.Label, Fields: opts.Predicate.Field, Limit: int(opts.Predicate.Limit), StartAfter: before(continueKey)}
	o.Namespace, o.Name = scope(prefix, opts.Recursive)
	if o.Versions, err = a.versions(opts.ResourceVersion); err != nil {
		return err
	}
	switch {
	case revision > 0:
		o.Versions = watch.Versions{Match: watch.Exact, Revision: revision}
	case continueKey != "":
		o.Versions = watch.Versions{Match: watch.MostRecent}
	}
	list, err := a.cache.List(ctx, o)
	if err != nil {
		return continuable(err, continueKey, prefix)
	}
	return a.fill(out, list, prefix)
}

// scope is what a prefix or key selects.
func scope(key string, recursive bool) (namespace, name string) {
	relative := strings.TrimPrefix(key, resource)
	namespace, name, found := strings.Cut(relative, "/")
	switch {
	case recursive && name != "": // keys below a pod's
		return namespace, nobody
	case recursive:
		return namespace, ""
	case !found:
		namespace, name = "", namespace
	}
	if name == "" {
		name = nobody
	}
	return namespace, name
}

// nobody is a name that no object has.
const nobody = "\x00"

// before is the key after which a list goes on that is to start with key: a
// token's key is the last one with a zero byte behind it.
func before(key string) string {
	key = strings.TrimPrefix(key, resource)
	if last, ok := strings.CutSuffix(key, "\x00"); ok || key == "" {
		return last
	}
	return key[:len(key)-1] + string(key[len(key)-1]-1) + "\xff"
}

// continuable gives the reader of a list that has expired a token to go on
// without consistency, which in the server its handler does.
func continuable(err error, continueKey, prefix string) error {
	if continueKey == "" || !apierrors.IsResourceExpired(err) {
		return err
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
	token, err := upstream.EncodeContinue(continueKey, prefix, -1)
	if err != nil {
		return err
	}
	expired.ErrStatus.Continue = token
	return expired
}

func (a *Adapter) fill(out runtime.Object, list *watch.List, prefix string) error {
	items := make([]runtime.Object, len(list.Objects))
	for i, object := range list.Objects {
		obj, err := object.Decode()
		if err != nil {
			return err
		}
		items[i] = obj
	}
	if err := meta.SetList(out, items); err != nil {
		return err
	}
	token := ""
	var remaining *int64
	if list.Next != "" {
		var err error
		if token, err = upstream.EncodeContinue(resource+list.Next+"\x00", prefix, list.Revision); err != nil {
			return err
		}
		if list.Remaining >= 0 {
			remaining = &list.Remaining
		}
	}
	return a.version.UpdateList(out, uint64(list.Revision), token, remaining)
}
