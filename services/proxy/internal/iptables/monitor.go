package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Monitor tells of changes to the nf_tables rules of this network namespace, from
// the kernel's notifications. The legacy variant of iptables makes none.
type Monitor struct {
	mu  sync.Mutex
	own []uint32 // processes of ours, the last ones
}

const (
	// nftablesGroup is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
	nftablesGroup = 7
	// newGeneration is the type of the message that ends each transaction:
	// NFT_MSG_NEWGEN of NFNL_SUBSYS_NFTABLES, of linux/netfilter/nf_tables.h.
	newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	// generationPID is NFTA_GEN_PROC_PID.
	generationPID = 2
	remembered    = 8
	// generationHeader is struct nfgenmsg before the attributes.
	generationHeader = 4
)

// Own says that a process's changes are ours.
func (m *Monitor) Own(pid int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = append(m.own, uint32(pid))
	m.own = m.own[max(0, len(m.own)-remembered):]
}

func (m *Monitor) ours(pid uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.own, pid)
}

// Run calls foreign for each transaction of another process, until ctx ends. It
// fails when the kernel does not tell.
func (m *Monitor) Run(ctx context.Context, foreign func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, nftablesGroup)
	if err != nil {
		return fmt.Errorf("subscribing to changes of rules: %w", err)
	}
	defer socket.Close()
	// Receive does not end with ctx: look at it from time to time.
	if err := socket.SetReceiveTimeout(&unix.Timeval{Usec: int64(200 * time.Millisecond / time.Microsecond)}); err != nil {
		return fmt.Errorf("subscribing to changes of rules: %w", err)
	}
	for ctx.Err() == nil {
		messages, _, err := socket.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			// A long transaction, most often of ours, overran the buffer: another's may
			// have been in what was lost.
			foreign()
			continue
		case err != nil:
			return fmt.Errorf("receiving changes of rules: %w", err)
		}
		for _, message := range messages {
			if message.Header.Type == newGeneration && len(message.Data) >= generationHeader && !m.ours(processOf(message.Data[generationHeader:])) {
				foreign()
			}
		}
	}
	return nil
}

// processOf is who made a transaction, 0 when it is not said.
func processOf(attributes []byte) uint32 {
	parsed, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return 0
	}
	for _, attribute := range parsed {
		if attribute.Attr.Type == generationPID && len(attribute.Value) == 4 {
			return binary.BigEndian.Uint32(attribute.Value)
		}
	}
	return 0
}
