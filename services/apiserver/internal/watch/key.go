package watch

import (
	"strings"

	"github.com/google/btree"
)

// key is the object's place in the cache, relative to the prefix.
func (o *Object) key() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// place is an object that sorts where key does.
func (c *Cache) place(key string) *Object {
	if !c.config.Namespaced {
		return place("", key)
	}
	namespace, name, _ := strings.Cut(key, "/")
	return place(namespace, name)
}

func place(namespace, name string) *Object {
	return &Object{Attributes: Attributes{Namespace: namespace, Name: name}}
}

func newTree() *btree.BTreeG[*Object] {
	return btree.NewG(degree, func(a, b *Object) bool { return compareKeys(a, b) < 0 })
}

// compareKeys orders objects of one resource as the bytes of their keys do,
// without making these. A namespace ends in a slash, before which sort "-" and
// ".".
func compareKeys(a, b *Object) int {
	shared := min(len(a.Namespace), len(b.Namespace))
	if order := strings.Compare(a.Namespace[:shared], b.Namespace[:shared]); order != 0 {
		return order
	}
	switch {
	case len(a.Namespace) == len(b.Namespace):
		return strings.Compare(a.Name, b.Name)
	case shared == 0: // the empty place before all objects
		return len(a.Namespace) - len(b.Namespace)
	case len(a.Namespace) > shared:
		return int(a.Namespace[shared]) - '/'
	default:
		return '/' - int(b.Namespace[shared])
	}
}

// split is the namespace and name of a store's key.
func (c *Cache) split(key string) (namespace, name string) {
	relative := strings.TrimPrefix(key, c.config.Prefix)
	if !c.config.Namespaced {
		return "", relative
	}
	namespace, name, _ = strings.Cut(relative, "/")
	return namespace, name
}

// storeKey is the store's key of an object.
func (c *Cache) storeKey(namespace, name string) string {
	if !c.config.Namespaced {
		return c.config.Prefix + name
	}
	return c.config.Prefix + namespace + "/" + name
}
