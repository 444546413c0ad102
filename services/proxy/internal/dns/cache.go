package dns

import (
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	cacheEntries = 2000
	maxCacheLife = 30 * time.Second
)

// cache holds answers of upstreams for a short time, at most as long as they are
// valid.
type cache struct {
	mu      sync.Mutex
	entries map[dns.Question]cached
}

type cached struct {
	message *dns.Msg
	since   time.Time
	until   time.Time
}

// get is an answer with what is left of its records' time to live. It is the
// caller's.
func (c *cache) get(question dns.Question) (*dns.Msg, bool) {
	c.mu.Lock()
	found, ok := c.entries[question]
	c.mu.Unlock()
	now := time.Now()
	if !ok || now.After(found.until) {
		return nil, false
	}
	message := found.message.Copy()
	age := uint32(now.Sub(found.since) / time.Second)
	for _, records := range [][]dns.RR{message.Answer, message.Ns} {
		for _, record := range records {
			record.Header().Ttl -= min(age, record.Header().Ttl)
		}
	}
	return message, true
}

// put keeps an answer. A denial without a SOA record says nothing of how long it
// holds, and is not kept (RFC 2308).
func (c *cache) put(question dns.Question, message *dns.Msg) {
	life, known := maxCacheLife, len(message.Answer) > 0
	for _, record := range message.Answer {
		life = min(life, time.Duration(record.Header().Ttl)*time.Second)
	}
	for _, record := range message.Ns {
		if soa, ok := record.(*dns.SOA); ok {
			known = true
			life = min(life, time.Duration(min(soa.Hdr.Ttl, soa.Minttl))*time.Second)
		}
	}
	if !known || life <= 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= cacheEntries {
		clear(c.entries) // simple, and rare
	}
	c.entries[question] = cached{message.Copy(), now, now.Add(life)}
}
