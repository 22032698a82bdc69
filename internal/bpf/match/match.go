// Package match puts packet filters into eBPF programs: those that include flow.h ask
// its subprogram flow_matches, of which it exchanges the body before they are loaded.
package match

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/filter"
)

// subprogram is the function of flow.h that has a filter's place.
const subprogram = "flow_matches"

// Install makes flow_matches in a program the filter e. With nil it stays as it is:
// it matches all. The program has to be one that calls it.
func Install(spec *ebpf.ProgramSpec, e *filter.Expr) error {
	if e == nil {
		return nil
	}
	begin, end := find(spec.Instructions)
	if begin < 0 {
		return fmt.Errorf("install a filter into the eBPF program %s: it has no subprogram %s", spec.Name, subprogram)
	}
	body := generate(e, order(spec))
	// The symbol is what calls refer to; the function and its line have to begin there
	// for the kernel to take the program's BTF.
	body[0] = body[0].WithMetadata(spec.Instructions[begin].Metadata)
	spec.Instructions = slices.Concat(spec.Instructions[:begin], body, spec.Instructions[end:])
	return nil
}

// find tells where flow_matches begins and where the function after it does; -1
// where it is not.
func find(instructions asm.Instructions) (begin, end int) {
	begin = slices.IndexFunc(instructions, func(i asm.Instruction) bool { return i.Symbol() == subprogram })
	if begin < 0 {
		return -1, -1
	}
	for end = begin + 1; end < len(instructions); end++ {
		if btf.FuncMetadata(&instructions[end]) != nil {
			break
		}
	}
	return begin, end
}

// order is the byte order that the program's loads have.
func order(spec *ebpf.ProgramSpec) binary.ByteOrder {
	if spec.ByteOrder != nil {
		return spec.ByteOrder
	}
	return binary.NativeEndian
}

// A node is a comparison, or a combination of one or two nodes. Nil is always true.
type node struct {
	op          filter.Op
	left, right *node
	compare     comparison
}

// comparison asks whether first ≤ field & mask ≤ last, without sign.
type comparison struct {
	field       field
	mask        uint32 // all ones: none
	first, last uint32
}

// field is a part of struct flow. filter.Packet has the same layout.
type field struct {
	offset uintptr
	size   asm.Size
}

var (
	l3              = field{unsafe.Offsetof(filter.Packet{}.L3), asm.Half}
	proto           = field{unsafe.Offsetof(filter.Packet{}.Proto), asm.Byte}
	flags           = field{unsafe.Offsetof(filter.Packet{}.Flags), asm.Byte}
	source          = field{unsafe.Offsetof(filter.Packet{}.Source), asm.Word}
	destination     = field{unsafe.Offsetof(filter.Packet{}.Destination), asm.Word}
	sourcePort      = field{unsafe.Offsetof(filter.Packet{}.SourcePort), asm.Half}
	destinationPort = field{unsafe.Offsetof(filter.Packet{}.DestinationPort), asm.Half}
)

const noMask = 1<<32 - 1

func within(f field, first, last uint32) *node {
	return &node{compare: comparison{f, noMask, first, last}}
}

func equal(f field, value uint32) *node { return within(f, value, value) }

func masked(f field, mask, value uint32) *node {
	return &node{compare: comparison{f, mask, value, value}}
}

func has(flag filter.Flags) *node { return masked(flags, uint32(flag), uint32(flag)) }

func not(n *node) *node { return &node{op: filter.Not, left: n} }

func and(nodes ...*node) *node {
	var all *node
	for _, n := range nodes {
		switch {
		case all == nil:
			all = n
		case n != nil:
			all = &node{op: filter.And, left: all, right: n}
		}
	}
	return all
}

// lower takes an expression apart into comparisons, in the way of filter.Match.
func lower(e *filter.Expr, order binary.ByteOrder) *node {
	switch e.Op {
	case filter.Is:
		return lowerTerm(e.Term, order)
	case filter.Not:
		return not(lower(e.Left, order))
	}
	return &node{op: e.Op, left: lower(e.Left, order), right: lower(e.Right, order)}
}

func lowerTerm(t filter.Term, order binary.ByteOrder) *node {
	switch t.Kind {
	case filter.OfProtocol:
		return ofProtocol(t.Proto)
	case filter.Host, filter.Network:
		return and(has(filter.HasAddresses), ofFamily(t),
			direct(t.Direction, prefix(source, t, order), prefix(destination, t, order)))
	}
	return and(has(filter.HasPorts), ofProtocol(t.Proto),
		direct(t.Direction, ports(sourcePort, t), ports(destinationPort, t)))
}

func ofProtocol(p filter.Protocol) *node {
	switch p {
	case filter.IPv4:
		return equal(l3, filter.EtherTypeIPv4)
	case filter.IPv6:
		return equal(l3, filter.EtherTypeIPv6)
	case filter.TCP:
		return equal(proto, filter.ProtoTCP)
	case filter.UDP:
		return equal(proto, filter.ProtoUDP)
	case filter.ICMP:
		return and(equal(l3, filter.EtherTypeIPv4), equal(proto, filter.ProtoICMP))
	}
	return nil
}

// ofFamily asks for packets with addresses of the term's family: of IPv4 also ARP
// and RARP have some.
func ofFamily(t filter.Term) *node {
	switch {
	case t.Net.Addr().Is6():
		return ofProtocol(filter.IPv6)
	case t.Proto == filter.IPv4:
		return ofProtocol(filter.IPv4)
	}
	return not(ofProtocol(filter.IPv6))
}

func direct(d filter.Direction, source, destination *node) *node {
	switch {
	case d == filter.Source:
		return source
	case d == filter.Destination:
		return destination
	case d == filter.Both || source == nil: // either both are always true, or none
		return and(source, destination)
	}
	return &node{op: filter.Or, left: source, right: destination}
}

// prefix compares an address word by word, as it lies in memory.
func prefix(f field, t filter.Term, order binary.ByteOrder) *node {
	var words []*node
	address := t.Net.Addr().AsSlice()
	for bits := t.Net.Bits(); bits > 0; bits -= 32 {
		mask := binary.BigEndian.AppendUint32(nil, noMask<<(32-min(bits, 32)))
		words = append(words, masked(f, order.Uint32(mask), order.Uint32(address)))
		address = address[4:]
		f.offset += 4
	}
	return and(words...)
}

func ports(f field, t filter.Term) *node {
	if t.FirstPort == 0 && t.LastPort == 1<<16-1 {
		return nil
	}
	return within(f, uint32(t.FirstPort), uint32(t.LastPort))
}
