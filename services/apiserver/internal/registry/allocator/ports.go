package allocator

import "fmt"

// Ports allocates node ports. A number has one owner, whatever the protocol; an
// owner may use it for several. Caller must hold the lock of the owner of the
// Ports.
type Ports struct {
	first, last int
	span        *span
}

// NewPorts allocates from first to last, both included.
func NewPorts(first, last int) (*Ports, error) {
	if first < 1 || last < first || last > 65535 {
		return nil, fmt.Errorf("node port range %d-%d is not a range of ports", first, last)
	}
	size := last - first + 1
	return &Ports{first: first, last: last, span: newSpan(size, band(size, 32, 128))}, nil
}

// String is the range as flags spell it.
func (p *Ports) String() string { return fmt.Sprintf("%d-%d", p.first, p.last) }

// Take reserves a port for owner. It fails with ErrOutOfRange or ErrTaken.
func (p *Ports) Take(port int, owner string) error { return p.span.take(port-p.first, owner) }

// Next reserves a port that nobody has. It fails with ErrFull.
func (p *Ports) Next(owner string) (int, error) {
	n, err := p.span.next(owner)
	return p.first + n, err
}

// Release frees a port if owner has it.
func (p *Ports) Release(port int, owner string) { p.span.release(port-p.first, owner) }

// has says whether owner has a port.
func (p *Ports) has(port int, owner string) bool {
	have, taken := p.span.owner[port-p.first]
	return taken && have == owner
}

func (p *Ports) contains(port int) bool { return port >= p.first && port <= p.last }

// reset leaves ports with their owners in wanted, and with those who hold theirs.
func (p *Ports) reset(wanted map[int]string, holds func(owner string) bool) {
	for n, owner := range p.span.owner {
		if wanted[p.first+n] != owner && !holds(owner) {
			delete(p.span.owner, n)
		}
	}
	for port, owner := range wanted {
		_ = p.Take(port, owner) // out of the range, or held
	}
}
