package watch

// bucket is what a watcher sleeps on: everything, a namespace, a name, or a
// value of an indexed field. An event wakes the buckets of its old and its new
// object only.
type bucket struct {
	namespace, name string
	field, value    string
}

// signal is what the watchers of a bucket sleep on together until the bucket's
// next event. The cache's mu guards all but the channel.
type signal struct {
	channel  chan struct{} // closed soon after it fired
	watchers int           // that sleep on it

	fired    bool
	position int64 // in the ring, of the event that fired it
	revision int64 // up to which nothing in the bucket changed since the sleep
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

// sleep is the signal of a bucket's next event. Caller must hold mu for writing,
// and call leave when it no longer sleeps on a signal that has not fired.
func (c *Cache) sleep(b bucket) *signal {
	s := c.buckets[b]
	if s == nil {
		s = &signal{channel: make(chan struct{})}
		c.buckets[b] = s
	}
	s.watchers++
	return s
}

// leave forgets a bucket that no watcher sleeps on.
func (c *Cache) leave(b bucket, s *signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.watchers--; s.watchers == 0 && !s.fired {
		delete(c.buckets, b)
	}
}

// fire appends the signals of an event's buckets to wake, whose channels are to
// be closed without the lock. Caller must hold mu.
func (c *Cache) fire(e *ringEvent, position int64, wake []*signal) []*signal {
	if len(c.buckets) == 0 {
		return wake
	}
	take := func(b bucket) {
		if s := c.buckets[b]; s != nil {
			s.fired, s.position, s.revision = true, position, e.revision-1
			wake = append(wake, s)
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
	return wake
}
