package watch

// bucket is what a watcher sleeps on: everything, a namespace, a name, or a
// value of an indexed field. An event wakes the buckets of its old and its new
// object only.
type bucket struct {
	namespace, name string
	field, value    string
}

// bucketOf is the narrowest bucket that has all events that o can match.
func (c *Cache) bucketOf(o WatchOptions) bucket {
	if o.Fields != nil {
		for _, name := range c.config.Indexed {
			if value, exact := o.Fields.RequiresExactMatch(name); exact {
				return bucket{field: name, value: value}
			}
		}
	}
	if o.Name != "" && (o.Namespace != "" || !c.config.Namespaced) {
		return bucket{namespace: o.Namespace, name: o.Name}
	}
	return bucket{namespace: o.Namespace}
}

// sleep is the channel that is closed at the next event of a bucket. Caller must
// hold mu for writing.
func (c *Cache) sleep(b bucket) <-chan struct{} {
	channel := c.buckets[b]
	if channel == nil {
		channel = make(chan struct{})
		c.buckets[b] = channel
	}
	return channel
}

// collect takes the channels of an event's buckets for closing. Caller must hold
// mu.
func (c *Cache) collect(e *ringEvent, wake map[bucket]chan struct{}) {
	if len(c.buckets) == 0 {
		return
	}
	take := func(b bucket) {
		if channel := c.buckets[b]; channel != nil {
			wake[b] = channel
			delete(c.buckets, b)
		}
	}
	take(bucket{})
	for _, object := range []*Object{e.before, e.after} {
		if object == nil {
			continue
		}
		take(bucket{namespace: object.Namespace})
		take(bucket{namespace: object.Namespace, name: object.Name})
		for _, name := range c.config.Indexed {
			take(bucket{field: name, value: object.Fields[name]})
		}
	}
}
