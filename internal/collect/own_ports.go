package collect

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// manySockets is how many there must be, as a share of the range, before it is asked to
	// whom they are: fewer cannot use it up.
	manySockets = 0.8
	// mostSockets bounds those that the kernel passes over, some 0.3 µs each; it returns those
	// with a port of the range. mostOwnUses bounds what is kept.
	mostSockets = 2_000_000
	mostOwnUses = 10
)

// readOwnPorts counts the ports of own connections towards each destination, where there are
// enough sockets to use up the range.
func (o *observation) readOwnPorts(context.Context) error {
	if o.TCP == nil || o.TCP.Sockets == nil {
		return errNone
	}
	text, err := readText(o.src, sysctlRoot+"net/ipv4/ip_local_port_range")
	if err != nil {
		return err
	}
	reserved, err := readText(o.src, sysctlRoot+"net/ipv4/ip_local_reserved_ports")
	if err != nil {
		reserved = ""
	}
	r, err := parseLocalPorts(text, reserved)
	if err != nil {
		return err
	}
	s := o.TCP.Sockets
	switch sockets := s.InUse + s.InUse6 + s.TimeWait; {
	case float64(sockets) < manySockets*float64(r.ports()):
		return errNone
	case sockets > mostSockets:
		return fmt.Errorf("count the ports of own connections: %d sockets are more than are asked for", sockets)
	}
	o.OwnPorts, err = answer(o, question{"ports of own connections", "own_ports.json"}, r.ask)
	return err
}

// localPorts are the ports from first to last that are not reserved.
type localPorts struct {
	first, last uint16
	reserved    map[uint16]bool
}

// parseLocalPorts reads ip_local_port_range, and ip_local_reserved_ports: "8080,9148-9150".
func parseLocalPorts(text, reserved string) (localPorts, error) {
	r := localPorts{reserved: map[uint16]bool{}}
	if n, err := fmt.Sscan(text, &r.first, &r.last); n != 2 || r.first > r.last {
		return r, fmt.Errorf("parse ip_local_port_range %.60q: %w", text, cmp.Or(err, strconv.ErrRange))
	}
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil {
			continue // none
		}
		for p := max(a, uint64(r.first)); p <= min(b, uint64(r.last)); p++ {
			r.reserved[uint16(p)] = true
		}
	}
	return r, nil
}

func (r localPorts) ports() int64 { return int64(r.last) - int64(r.first) + 1 - int64(len(r.reserved)) }

// request asks for the sockets in all states but LISTEN whose port is of the range: two
// instructions for the kernel (inet_diag_bc_run), of which each leads behind the end, which
// refuses, where it does not hold.
func (r localPorts) request(family byte) []byte {
	const listen, bytecode, ge, le = 10, 1, 2, 3
	request := make([]byte, 56)
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], 0xfff&^(1<<listen))
	op := func(code, yes byte, no uint16) {
		request = binary.NativeEndian.AppendUint16(append(request, code, yes), no)
	}
	request = binary.NativeEndian.AppendUint16(request, 4+16)
	request = binary.NativeEndian.AppendUint16(request, bytecode)
	op(ge, 8, 20)
	op(0, 0, r.first)
	op(le, 8, 12)
	op(0, 0, r.last)
	return request
}

// ownUse is a pair of addresses; ownUses the ports in use of each, and whether in TIME_WAIT.
type ownUse struct {
	local netip.Addr
	to    netip.AddrPort
}

type ownUses map[ownUse]map[uint16]bool

func (u ownUses) addMessage(r localPorts, m netlink.Message, size int) {
	const state, port, peer, local, remote, end, timeWait = 1, 4, 6, 8, 24, 40, 6
	if len(m.Body) < end {
		return
	}
	from, _ := netip.AddrFromSlice(m.Body[local : local+size])
	to, _ := netip.AddrFromSlice(m.Body[remote : remote+size])
	u.add(r, netip.AddrPortFrom(from.Unmap(), binary.BigEndian.Uint16(m.Body[port:])), netip.AddrPortFrom(to.Unmap(), binary.BigEndian.Uint16(m.Body[peer:])), m.Body[state] == timeWait)
}

func (u ownUses) add(r localPorts, from, to netip.AddrPort, timeWait bool) {
	own := from.Port()
	if own < r.first || own > r.last || r.reserved[own] || to.Addr().IsUnspecified() {
		return
	}
	key := ownUse{from.Addr(), to}
	if u[key] == nil {
		u[key] = map[uint16]bool{}
	}
	u[key][own] = timeWait
}

func (u ownUses) worst(ports int64) *snapshot.OwnPorts {
	all := &snapshot.OwnPorts{Ports: ports, Uses: []snapshot.OwnPortUse{}}
	for key, used := range u {
		one := snapshot.OwnPortUse{Local: key.local, Destination: key.to, Used: int64(len(used))}
		for _, timeWait := range used {
			if timeWait {
				one.TimeWait++
			}
		}
		all.Uses = append(all.Uses, one)
	}
	slices.SortFunc(all.Uses, func(a, b snapshot.OwnPortUse) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), a.Destination.Compare(b.Destination), a.Local.Compare(b.Local))
	})
	all.Uses = all.Uses[:min(len(all.Uses), mostOwnUses)]
	return all
}
