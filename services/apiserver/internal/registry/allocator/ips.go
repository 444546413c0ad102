package allocator

import (
	"fmt"
	"math/big"
	"net/netip"
)

// IPs allocates from one service CIDR. Caller must hold the lock of the owner
// of the IPs.
type IPs struct {
	prefix netip.Prefix
	span   *span
}

// How many addresses of a large range are used, in bits.
const (
	maxBits4 = 20
	maxBits6 = 16
)

// NewIPs allocates from prefix without its first and, for IPv4, last address.
func NewIPs(prefix netip.Prefix) (*IPs, error) {
	prefix = prefix.Masked()
	most := maxBits6
	if prefix.Addr().Is4() {
		most = maxBits4
	}
	size := 1<<min(prefix.Addr().BitLen()-prefix.Bits(), most) - 1 // without the network's own
	if prefix.Addr().Is4() {
		size-- // broadcast
	}
	if size < 1 {
		return nil, fmt.Errorf("service range %s has no usable address", prefix)
	}
	return &IPs{prefix: prefix, span: newSpan(size, band(size, 16, 256))}, nil
}

// Prefix is the range.
func (a *IPs) Prefix() netip.Prefix { return a.prefix }

// Take reserves an address for owner. It fails with ErrOutOfRange or ErrTaken.
func (a *IPs) Take(addr netip.Addr, owner string) error {
	n, ok := a.index(addr)
	if !ok {
		return ErrOutOfRange
	}
	return a.span.take(n, owner)
}

// Next reserves any free address. It fails with ErrFull.
func (a *IPs) Next(owner string) (netip.Addr, error) {
	n, err := a.span.next(owner)
	if err != nil {
		return netip.Addr{}, err
	}
	return a.address(n), nil
}

// Release frees an address if it is owner's.
func (a *IPs) Release(addr netip.Addr, owner string) {
	if n, ok := a.index(addr); ok {
		a.span.release(n, owner)
	}
}

// index is the place of an address, counted from the first usable one.
func (a *IPs) index(addr netip.Addr) (int, bool) {
	if !a.prefix.Contains(addr) {
		return 0, false
	}
	diff := new(big.Int).Sub(number(addr), number(a.prefix.Addr()))
	if !diff.IsInt64() || diff.Int64() < 1 || diff.Int64() > int64(a.span.size) {
		return 0, false
	}
	return int(diff.Int64()) - 1, true
}

func (a *IPs) address(n int) netip.Addr {
	sum := new(big.Int).Add(number(a.prefix.Addr()), big.NewInt(int64(n)+1))
	out := make([]byte, a.prefix.Addr().BitLen()/8)
	sum.FillBytes(out)
	addr, _ := netip.AddrFromSlice(out)
	return addr
}

func number(addr netip.Addr) *big.Int { return new(big.Int).SetBytes(addr.AsSlice()) }
