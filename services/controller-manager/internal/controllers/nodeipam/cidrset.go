package nodeipam

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
)

// errFull means that every subnet of the cluster's range is taken.
var errFull = errors.New("no subnet is left in the cluster's pod range")

// maxSubnets bounds how many nodes a range is cut for.
const maxSubnets = 1 << 16

// cidrSet hands out equal subnets of one range. It is not safe for concurrent
// use.
type cidrSet struct {
	cluster netip.Prefix
	bits    int // prefix length of a node's subnet
	used    []uint64
	count   int // subnets in the range
	next    int // where the search for a free one starts
}

func newCIDRSet(cluster netip.Prefix, nodeBits int) (*cidrSet, error) {
	cluster = cluster.Masked()
	extra := nodeBits - cluster.Bits()
	switch {
	case extra < 0 || nodeBits > cluster.Addr().BitLen():
		return nil, fmt.Errorf("node subnets of /%d do not fit into the pod range %s", nodeBits, cluster)
	case extra > bits.Len(maxSubnets)-1:
		return nil, fmt.Errorf("the pod range %s has more than %d subnets of /%d; choose a larger node mask", cluster, maxSubnets, nodeBits)
	}
	count := 1 << extra
	return &cidrSet{cluster: cluster, bits: nodeBits, used: make([]uint64, (count+63)/64), count: count}, nil
}

// allocate takes a free subnet.
func (s *cidrSet) allocate() (netip.Prefix, error) {
	for i := range s.count {
		at := (s.next + i) % s.count
		if !s.taken(at) {
			s.mark(at, true)
			s.next = at + 1
			return s.subnet(at), nil
		}
	}
	return netip.Prefix{}, errFull
}

// occupy marks the subnets that overlap prefix as taken; those outside of the
// range do not matter.
func (s *cidrSet) occupy(prefix netip.Prefix) { s.each(prefix, true) }

// release gives back the subnets that overlap prefix.
func (s *cidrSet) release(prefix netip.Prefix) { s.each(prefix, false) }

func (s *cidrSet) each(prefix netip.Prefix, taken bool) {
	if !s.cluster.Overlaps(prefix) {
		return
	}
	first, last := 0, s.count-1
	if prefix.Bits() > s.cluster.Bits() {
		first = s.index(prefix.Addr())
		last = first
		if prefix.Bits() < s.bits {
			last = first + 1<<(s.bits-prefix.Bits()) - 1
		}
	}
	for at := first; at <= last; at++ {
		s.mark(at, taken)
	}
}

func (s *cidrSet) taken(at int) bool { return s.used[at/64]&(1<<(at%64)) != 0 }

func (s *cidrSet) mark(at int, taken bool) {
	if taken {
		s.used[at/64] |= 1 << (at % 64)
	} else {
		s.used[at/64] &^= 1 << (at % 64)
	}
}

// The number of a subnet stands in the bits between the two prefix lengths. A
// range has at most 2^16 subnets, so the number spans at most 24 bits' worth of
// bytes and is read bit by bit.
func (s *cidrSet) subnet(at int) netip.Prefix {
	raw := s.cluster.Addr().As16()
	offset := 128 - s.cluster.Addr().BitLen()
	for i := s.bits - 1; i >= s.cluster.Bits(); i-- {
		if at&1 == 1 {
			raw[(offset+i)/8] |= 1 << (7 - (offset+i)%8)
		}
		at >>= 1
	}
	addr := netip.AddrFrom16(raw)
	if s.cluster.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, s.bits)
}

func (s *cidrSet) index(addr netip.Addr) int {
	raw := addr.As16()
	offset := 128 - addr.BitLen()
	at := 0
	for i := s.cluster.Bits(); i < s.bits; i++ {
		bit := raw[(offset+i)/8] >> (7 - (offset+i)%8) & 1
		at = at<<1 | int(bit)
	}
	return at
}
