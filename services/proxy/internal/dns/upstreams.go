package dns

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	upstreamTimeout  = 2 * time.Second
	upstreamAttempts = 2   // of each resolver
	maxForwards      = 256 // questions under way at once
	resolvConfAge    = 5 * time.Second
	dnsPort          = 53
	// systemdResolvConf has the resolvers behind systemd's stub, which listens on
	// loopback and cannot be reached from another network namespace.
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
)

// upstreams answer names outside the cluster.
type upstreams struct {
	path  string
	self  netip.AddrPort
	log   *slog.Logger
	cache cache
	slots chan struct{}

	forwarded, failed atomic.Int64

	mu       sync.Mutex
	checked  time.Time
	modified time.Time
	servers  []netip.AddrPort
}

func newUpstreams(config Config) *upstreams {
	return &upstreams{
		path: config.ResolvConf, self: config.Address, log: config.Log,
		cache: cache{entries: map[dns.Question]cached{}}, slots: make(chan struct{}, maxForwards),
	}
}

// resolvers are those of resolv.conf, which is read again when it changed.
func (u *upstreams) resolvers() []netip.AddrPort {
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.checked) < resolvConfAge {
		return u.servers
	}
	u.checked = time.Now()
	file, err := os.Stat(u.path)
	if err == nil && file.ModTime().Equal(u.modified) {
		return u.servers
	}
	servers, err := readResolvers(u.path)
	if err != nil {
		u.log.Warn("Names outside the cluster are not resolved as they should be", "err", err)
		return u.servers
	}
	if len(servers) > 0 && !slices.ContainsFunc(servers, func(a netip.AddrPort) bool { return !a.Addr().IsLoopback() }) {
		if behind, err := readResolvers(systemdResolvConf); err == nil && len(behind) > 0 {
			servers = behind
		}
	}
	u.servers = slices.DeleteFunc(servers, func(a netip.AddrPort) bool { return a == u.self })
	if file != nil {
		u.modified = file.ModTime()
	}
	return u.servers
}

func readResolvers(path string) ([]netip.AddrPort, error) {
	config, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, server := range config.Servers {
		if ip, err := netip.ParseAddr(server); err == nil {
			out = append(out, netip.AddrPortFrom(ip, dnsPort))
		}
	}
	return out, nil
}

// forward asks the resolvers in their order; the first that knows wins. Without
// any answer it is a server failure.
func (u *upstreams) forward(reply *dns.Msg, question dns.Question) {
	if found, ok := u.cache.get(question); ok {
		reply.Rcode, reply.Answer, reply.Ns = found.Rcode, found.Answer, found.Ns
		return
	}
	reply.Rcode = dns.RcodeServerFailure
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	default:
		return // a flood of names outside must not take the node's memory
	}
	u.forwarded.Add(1)
	message := new(dns.Msg)
	message.SetQuestion(question.Name, question.Qtype)
	message.SetEdns0(maxUDP, false)
	resolvers := u.resolvers()
	for range upstreamAttempts {
		for _, resolver := range resolvers {
			found, err := exchange(message, resolver)
			if err != nil {
				u.log.Debug("Resolver does not answer", "resolver", resolver, "err", err)
				continue
			}
			reply.Rcode, reply.Answer, reply.Ns = found.Rcode, found.Answer, found.Ns
			if found.Rcode == dns.RcodeSuccess || found.Rcode == dns.RcodeNameError {
				u.cache.put(question, found)
				return
			}
		}
	}
	u.failed.Add(1)
}

func exchange(message *dns.Msg, resolver netip.AddrPort) (*dns.Msg, error) {
	client := dns.Client{Net: "udp", Timeout: upstreamTimeout, UDPSize: maxUDP}
	found, _, err := client.Exchange(message, resolver.String())
	if err == nil && found.Truncated {
		client.Net = "tcp"
		found, _, err = client.Exchange(message, resolver.String())
	}
	return found, err
}
