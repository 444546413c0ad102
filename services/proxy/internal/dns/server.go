package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

// Config of a server.
type Config struct {
	Address netip.AddrPort // the cluster's DNS address
	Domain  string         // "cluster.local"
	// Upstreams answer names outside the cluster; the server's own address among
	// them is left out.
	Upstreams []netip.AddrPort
	Source    Source
	Log       *slog.Logger
}

const (
	upstreamTimeout = 2 * time.Second
	maxUDP          = 1232 // larger answers fragment (RFC 9715)
	cacheEntries    = 2000
	maxCacheTTL     = 30 * time.Second
	maxForwards     = 256 // questions under way at once
)

// Server answers DNS over UDP and TCP.
type Server struct {
	config Config
	zone   zone
	cache  cache
	slots  chan struct{}

	answered, forwarded, failed atomic.Int64
}

// New makes a server; Run serves.
func New(config Config) *Server {
	config.Upstreams = slices.DeleteFunc(slices.Clone(config.Upstreams), func(a netip.AddrPort) bool { return a == config.Address })
	return &Server{config: config, zone: zone{dns.Fqdn(config.Domain), config.Source}, cache: cache{entries: map[dns.Question]cached{}}, slots: make(chan struct{}, maxForwards)}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var listen net.ListenConfig
	packets, err := listen.ListenPacket(ctx, "udp", s.config.Address.String())
	if err != nil {
		return fmt.Errorf("listening for DNS: %w", err)
	}
	streams, err := listen.Listen(ctx, "tcp", s.config.Address.String())
	if err != nil {
		return errors.Join(fmt.Errorf("listening for DNS: %w", err), packets.Close())
	}
	servers := []*dns.Server{
		{PacketConn: packets, Handler: s, UDPSize: maxUDP},
		{Listener: streams, Handler: s, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, server := range servers {
		group.Go(server.ActivateAndServe)
	}
	group.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		for _, server := range servers {
			_ = server.ShutdownContext(stop)
		}
		return nil
	})
	return group.Wait()
}

// ServeDNS answers one message.
func (s *Server) ServeDNS(w dns.ResponseWriter, request *dns.Msg) {
	reply := s.reply(request, w.RemoteAddr().Network() == "udp")
	if err := w.WriteMsg(reply); err != nil {
		s.config.Log.Debug("DNS answer not sent", "err", err)
	}
}

func (s *Server) reply(request *dns.Msg, udp bool) *dns.Msg {
	reply := new(dns.Msg)
	if request.Opcode != dns.OpcodeQuery {
		return reply.SetRcode(request, dns.RcodeNotImplemented)
	}
	if len(request.Question) != 1 || request.Question[0].Qclass != dns.ClassINET {
		return reply.SetRcode(request, dns.RcodeRefused)
	}
	question := request.Question[0]
	reply.SetReply(request)
	reply.RecursionAvailable = true
	s.answered.Add(1)
	if found, ours := s.local(question); ours {
		reply.Authoritative = true
		reply.Answer, reply.Extra = found.records, found.extra
		if !found.exists {
			reply.Rcode = dns.RcodeNameError
		}
		if len(found.records) == 0 {
			reply.Ns = []dns.RR{s.zone.soa()}
		}
		s.followAlias(reply, question)
	} else {
		s.forward(reply, question)
	}
	size := dns.MaxMsgSize
	if option := request.IsEdns0(); option != nil {
		reply.SetEdns0(maxUDP, false)
		size = int(option.UDPSize())
	} else {
		size = min(size, dns.MinMsgSize)
	}
	if udp {
		reply.Truncate(min(max(size, dns.MinMsgSize), maxUDP))
	} else {
		reply.Truncate(dns.MaxMsgSize)
	}
	return reply
}

// local answers names of the cluster.
func (s *Server) local(question dns.Question) (answer, bool) {
	if dns.IsSubDomain(s.zone.domain, question.Name) {
		return s.zone.lookup(question), true
	}
	return s.zone.reverse(question)
}

// followAlias adds the addresses that an ExternalName leads to.
func (s *Server) followAlias(reply *dns.Msg, question dns.Question) {
	if question.Qtype != dns.TypeA && question.Qtype != dns.TypeAAAA || len(reply.Answer) != 1 {
		return
	}
	alias, ok := reply.Answer[0].(*dns.CNAME)
	if !ok {
		return
	}
	target := dns.Question{Name: alias.Target, Qtype: question.Qtype, Qclass: dns.ClassINET}
	if found, ours := s.local(target); ours {
		reply.Answer = append(reply.Answer, found.records...)
		return
	}
	outside := new(dns.Msg)
	s.forward(outside, target)
	reply.Answer = append(reply.Answer, outside.Answer...)
}

// forward asks the upstreams, each once, the first that answers wins.
func (s *Server) forward(reply *dns.Msg, question dns.Question) {
	if found, ok := s.cache.get(question); ok {
		reply.Rcode, reply.Answer, reply.Ns = found.Rcode, found.Answer, found.Ns
		return
	}
	reply.Rcode = dns.RcodeServerFailure
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return // a flood of names outside must not take the node's memory
	}
	s.forwarded.Add(1)
	message := new(dns.Msg)
	message.SetQuestion(question.Name, question.Qtype)
	message.SetEdns0(maxUDP, false)
	for _, upstream := range s.config.Upstreams {
		found, err := exchange(message, upstream)
		if err != nil {
			s.config.Log.Debug("Upstream resolver does not answer", "resolver", upstream, "err", err)
			continue
		}
		reply.Rcode, reply.Answer, reply.Ns = found.Rcode, found.Answer, found.Ns
		s.cache.put(question, found)
		return
	}
	s.failed.Add(1)
}

func exchange(message *dns.Msg, upstream netip.AddrPort) (*dns.Msg, error) {
	client := dns.Client{Net: "udp", Timeout: upstreamTimeout, UDPSize: maxUDP}
	found, _, err := client.Exchange(message, upstream.String())
	if err == nil && found.Truncated {
		client.Net = "tcp"
		found, _, err = client.Exchange(message, upstream.String())
	}
	return found, err
}

// cache holds answers of upstreams for a short time.
type cache struct {
	mu      sync.Mutex
	entries map[dns.Question]cached
}

type cached struct {
	message *dns.Msg
	until   time.Time
}

func (c *cache) get(question dns.Question) (*dns.Msg, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.entries[question]
	if !ok || time.Now().After(found.until) {
		return nil, false
	}
	return found.message, true
}

func (c *cache) put(question dns.Question, message *dns.Msg) {
	if message.Rcode != dns.RcodeSuccess && message.Rcode != dns.RcodeNameError {
		return
	}
	life := maxCacheTTL
	for _, record := range append(slices.Clone(message.Answer), message.Ns...) {
		life = min(life, time.Duration(record.Header().Ttl)*time.Second)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= cacheEntries {
		clear(c.entries) // simple, and rare
	}
	c.entries[question] = cached{message, time.Now().Add(life)}
}

// Counts are the questions answered, those passed on, and those that no
// upstream answered.
func (s *Server) Counts() (answered, forwarded, failed int64) {
	return s.answered.Load(), s.forwarded.Load(), s.failed.Load()
}
