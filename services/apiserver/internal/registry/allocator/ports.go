package allocator

import "fmt"

// Ports allocates node ports. A port number is one for all protocols unless it
// is asked for by number: then each protocol has its own. Caller must hold the
// lock of the owner of the Ports.
type Ports struct {
	first, last int
	any         *span            // numbers with any protocol taken
	taken       map[int][]holder // who has which number
}

type holder struct{ protocol, owner string }

// NewPorts allocates from first to last, both included.
func NewPorts(first, last int) (*Ports, error) {
	if first < 1 || last < first || last > 65535 {
		return nil, fmt.Errorf("node port range %d-%d is not a range of ports", first, last)
	}
	size := last - first + 1
	return &Ports{first: first, last: last, any: newSpan(size, band(size, 32, 128)), taken: map[int][]holder{}}, nil
}

// String is the range as flags spell it.
func (p *Ports) String() string { return fmt.Sprintf("%d-%d", p.first, p.last) }

// Take reserves a port for owner. It fails with ErrOutOfRange or, when another
// has the same number and protocol, ErrTaken.
func (p *Ports) Take(port int, protocol, owner string) error {
	if port < p.first || port > p.last {
		return ErrOutOfRange
	}
	for _, h := range p.taken[port] {
		if h.protocol == protocol {
			if h.owner != owner {
				return ErrTaken
			}
			return nil
		}
	}
	p.taken[port] = append(p.taken[port], holder{protocol, owner})
	p.any.owner[port-p.first] = "" // taken by number; the holders are in taken
	return nil
}

// Next reserves a port that nobody has under any protocol. It fails with
// ErrFull.
func (p *Ports) Next(protocol, owner string) (int, error) {
	n, err := p.any.next("")
	if err != nil {
		return 0, err
	}
	port := p.first + n
	p.taken[port] = append(p.taken[port], holder{protocol, owner})
	return port, nil
}

// Release frees a port if owner has it under protocol.
func (p *Ports) Release(port int, protocol, owner string) {
	list := p.taken[port]
	for i, h := range list {
		if h == (holder{protocol, owner}) {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(p.taken, port)
		if port >= p.first && port <= p.last {
			delete(p.any.owner, port-p.first)
		}
		return
	}
	p.taken[port] = list
}
