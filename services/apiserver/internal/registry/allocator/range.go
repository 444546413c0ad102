package allocator

import (
	"fmt"
	"math/big"
	"net/netip"
)

// maxBits bounds how much of a large range is used, so that its size can be
// counted.
const maxBits = 62

// Range is what a service CIDR offers: its addresses without the first and, for
// IPv4, the last.
type Range struct {
	prefix netip.Prefix
	size   int64
	// band are the first addresses, which are left to those who ask for one by
	// number while others are free (KEP-3070).
	band int64
}

// NewRange is the range of a prefix.
func NewRange(prefix netip.Prefix) (Range, error) {
	prefix = prefix.Masked()
	if !prefix.IsValid() {
		return Range{}, fmt.Errorf("not a range of addresses")
	}
	size := int64(1)<<min(prefix.Addr().BitLen()-prefix.Bits(), maxBits) - 1 // without the network's own
	if prefix.Addr().Is4() {
		size-- // broadcast
	}
	if size < 1 {
		return Range{}, fmt.Errorf("service range %s has no usable address", prefix)
	}
	return Range{prefix: prefix, size: size, band: band(size, 16, 256)}, nil
}

// Contains says whether an address can be taken from the range.
func (r Range) Contains(addr netip.Addr) bool {
	if !r.prefix.Contains(addr) {
		return false
	}
	diff := new(big.Int).Sub(number(addr), number(r.prefix.Addr()))
	return diff.IsInt64() && diff.Int64() >= 1 && diff.Int64() <= r.size
}

// address is the n-th usable one, counted from 0.
func (r Range) address(n int64) netip.Addr {
	sum := new(big.Int).Add(number(r.prefix.Addr()), big.NewInt(n+1))
	out := make([]byte, r.prefix.Addr().BitLen()/8)
	sum.FillBytes(out)
	addr, _ := netip.AddrFromSlice(out)
	return addr
}

func number(addr netip.Addr) *big.Int { return new(big.Int).SetBytes(addr.AsSlice()) }
