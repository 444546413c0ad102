package watch

import "k8s.io/apimachinery/pkg/runtime"

// Cache is one resource's cache. It implements Store.
type Cache struct{}

func (c *Cache) encoded(*Object, Encoding) ([]byte, error) { return nil, nil }
func (c *Cache) decode(*Object) (runtime.Object, error)    { return nil, nil }
func (c *Cache) shared(*Object) (runtime.Object, error)    { return nil, nil }
