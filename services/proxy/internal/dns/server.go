package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

// Config of a server.
type Config struct {
	Address netip.AddrPort // the cluster's DNS address
	Domain  string         // "cluster.local"
	// ResolvConf is the file with the resolvers that answer names outside the
	// cluster. It is read again when it changes; the server's own address in it is
	// left out.
	ResolvConf string
	Source     Source
	Log        *slog.Logger
}

// maxUDP is the size of the largest answer over UDP; larger ones fragment (RFC
// 9715).
const maxUDP = 1232

// Server answers DNS over UDP and TCP.
type Server struct {
	config    Config
	zone      zone
	upstreams *upstreams

	answered, panics atomic.Int64
}

// New makes a server; Run serves.
func New(config Config) *Server {
	return &Server{
		config:    config,
		zone:      zone{dns.CanonicalName(config.Domain), config.Address.Addr(), config.Source},
		upstreams: newUpstreams(config),
	}
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
	defer func() {
		if cause := recover(); cause != nil {
			s.panics.Add(1)
			s.config.Log.Error("DNS question not answered", "panic", cause, "stack", string(debug.Stack()))
		}
	}()
	reply := s.reply(request, w.RemoteAddr().Network() == "udp")
	if err := w.WriteMsg(reply); err != nil {
		s.config.Log.Debug("DNS answer not sent", "err", err)
	}
}

func (s *Server) reply(request *dns.Msg, udp bool) *dns.Msg {
	reply := new(dns.Msg)
	size := dns.MinMsgSize
	if option := request.IsEdns0(); option != nil {
		if option.Version() != 0 {
			return reply.SetRcode(request, dns.RcodeBadVers).SetEdns0(maxUDP, false)
		}
		size = min(max(int(option.UDPSize()), dns.MinMsgSize), maxUDP)
	}
	if !udp {
		size = dns.MaxMsgSize
	}
	switch {
	case request.Opcode != dns.OpcodeQuery:
		return reply.SetRcode(request, dns.RcodeNotImplemented)
	case len(request.Question) != 1:
		return reply.SetRcode(request, dns.RcodeFormatError)
	case request.Question[0].Qclass != dns.ClassINET, request.Question[0].Qtype == dns.TypeAXFR, request.Question[0].Qtype == dns.TypeIXFR:
		return reply.SetRcode(request, dns.RcodeRefused)
	}
	reply.SetReply(request)
	reply.RecursionAvailable = true
	s.answered.Add(1)
	s.fill(reply, request.Question[0])
	if request.IsEdns0() != nil {
		reply.SetEdns0(maxUDP, false)
	}
	reply.Truncate(size)
	return reply
}

// fill answers a question: of the cluster, or by the upstreams.
func (s *Server) fill(reply *dns.Msg, question dns.Question) {
	found, ours := s.local(question)
	if !ours {
		s.upstreams.forward(reply, question)
		return
	}
	if found.unsure {
		reply.Rcode = dns.RcodeServerFailure
		return
	}
	reply.Authoritative = true
	reply.Answer, reply.Extra = found.records, found.extra
	if !found.exists {
		reply.Rcode = dns.RcodeNameError
	}
	if len(found.records) == 0 {
		reply.Ns = []dns.RR{s.zone.soa()}
	}
	s.followAlias(reply, question)
}

// local answers names of the cluster.
func (s *Server) local(question dns.Question) (answer, bool) {
	if dns.IsSubDomain(s.zone.domain, question.Name) {
		if !s.config.Source.Synced() {
			return answer{unsure: true}, true
		}
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
	s.upstreams.forward(outside, target)
	reply.Answer = append(reply.Answer, outside.Answer...)
}

// Counts are what a server did since its start.
type Counts struct {
	Answered  int64 // questions
	Forwarded int64 // those that resolvers were asked for
	Failed    int64 // those that no resolver knew
	Panics    int64
}

// Counts are what was done up to now.
func (s *Server) Counts() Counts {
	return Counts{s.answered.Load(), s.upstreams.forwarded.Load(), s.upstreams.failed.Load(), s.panics.Load()}
}
