package bpf

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/frame"
	"golang.org/x/sys/unix"
)

// subprogram is the function of flow.h that has a filter's place.
const subprogram = "flow_matches"

// Install makes flow_matches in a program the filter e. With nil it stays as it is:
// it matches all. The program has to be one that calls it.
func Install(spec *ebpf.ProgramSpec, e *frame.Filter) error {
	if e == nil {
		return nil
	}
	return Replace(spec, subprogram, generate(e, order(spec)))
}

// Replace makes instructions the body of a function of a program.
func Replace(spec *ebpf.ProgramSpec, function string, body asm.Instructions) error {
	begin, end := find(spec.Instructions, function)
	if begin < 0 {
		return fmt.Errorf("install a filter into the eBPF program %s: it has no subprogram %s", spec.Name, function)
	}
	body = slices.Clone(body)
	// The symbol is what calls refer to; the function and its line have to begin there
	// for the kernel to take the program's BTF.
	body[0] = body[0].WithMetadata(spec.Instructions[begin].Metadata)
	spec.Instructions = slices.Concat(spec.Instructions[:begin], body, spec.Instructions[end:])
	return nil
}

// find returns where a function begins and where the one after it does; -1 where it is not.
func find(instructions asm.Instructions, function string) (begin, end int) {
	begin = slices.IndexFunc(instructions, func(i asm.Instruction) bool { return i.Symbol() == function })
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
	op          frame.Op
	left, right *node
	compare     comparison
}

// comparison asks whether first ≤ field & mask ≤ last, without sign.
type comparison struct {
	field       field
	mask        uint32 // all ones: none
	first, last uint32
}

// flow has the layout of struct flow in internal/bpf/include/flow.h.
type flow struct {
	Source, Destination         [16]byte // of IPv4 and ARP the first four
	SourcePort, DestinationPort uint16
	L3                          uint16 // skb->protocol: EtherTypeIPv4…
	Length                      uint16 // of the IP packet, header included, from its header
	Proto                       uint8  // of an IPv6 fragment, that behind the fragment header
	TCPFlags                    uint8
	ICMPType, ICMPCode          uint8
	Flags                       uint8
	TTL                         uint8
	_                           uint16
}

// Flags of a flow: FLOW_… in flow.h.
const (
	// HasAddresses is set where Source and Destination are known.
	HasAddresses uint8 = 1 << iota
	// HasPorts is set where the ports are known: of TCP, UDP and SCTP.
	HasPorts
	// IsFragment is an IPv4 fragment but the first, or any of IPv6.
	IsFragment
)

// field is a part of struct flow.
type field struct {
	offset uintptr
	size   asm.Size
}

var (
	l3              = field{unsafe.Offsetof(flow{}.L3), asm.Half}
	proto           = field{unsafe.Offsetof(flow{}.Proto), asm.Byte}
	flags           = field{unsafe.Offsetof(flow{}.Flags), asm.Byte}
	source          = field{unsafe.Offsetof(flow{}.Source), asm.Word}
	destination     = field{unsafe.Offsetof(flow{}.Destination), asm.Word}
	sourcePort      = field{unsafe.Offsetof(flow{}.SourcePort), asm.Half}
	destinationPort = field{unsafe.Offsetof(flow{}.DestinationPort), asm.Half}
)

const noMask = 1<<32 - 1

func within(f field, first, last uint32) *node {
	return &node{compare: comparison{f, noMask, first, last}}
}

func equal(f field, value uint32) *node { return within(f, value, value) }

func masked(f field, mask, value uint32) *node {
	return &node{compare: comparison{f, mask, value, value}}
}

func has(flag uint8) *node { return masked(flags, uint32(flag), uint32(flag)) }

func not(n *node) *node { return &node{op: frame.OpNot, left: n} }

func and(nodes ...*node) *node {
	var all *node
	for _, n := range nodes {
		switch {
		case all == nil:
			all = n
		case n != nil:
			all = &node{op: frame.OpAnd, left: all, right: n}
		}
	}
	return all
}

// lower takes an expression apart into comparisons, in the way of the fields of struct flow.
func lower(e *frame.Filter, order binary.ByteOrder) *node {
	switch e.Op {
	case frame.OpTerm:
		return lowerTerm(e.Term, order)
	case frame.OpNot:
		return not(lower(e.Left, order))
	}
	return &node{op: e.Op, left: lower(e.Left, order), right: lower(e.Right, order)}
}

func lowerTerm(t frame.Term, order binary.ByteOrder) *node {
	switch t.Kind {
	case frame.OfProtocol:
		return ofProtocol(t.Protocol)
	case frame.OfHost, frame.OfNet:
		return and(has(HasAddresses), ofFamily(t),
			direct(t.Direction, prefix(source, t, order), prefix(destination, t, order)))
	}
	return and(has(HasPorts), ofProtocol(t.Protocol),
		direct(t.Direction, ports(sourcePort, t), ports(destinationPort, t)))
}

func ofProtocol(p frame.Protocol) *node {
	switch p {
	case frame.OnlyIPv4:
		return equal(l3, frame.EtherTypeIPv4)
	case frame.OnlyIPv6:
		return equal(l3, frame.EtherTypeIPv6)
	case frame.OnlyTCP:
		return equal(proto, unix.IPPROTO_TCP)
	case frame.OnlyUDP:
		return equal(proto, unix.IPPROTO_UDP)
	case frame.OnlyICMP:
		return and(equal(l3, frame.EtherTypeIPv4), equal(proto, unix.IPPROTO_ICMP))
	}
	return nil
}

// ofFamily asks for packets with addresses of the term's family: of IPv4 also ARP
// and RARP have some.
func ofFamily(t frame.Term) *node {
	switch {
	case t.Net.Addr().Is6():
		return ofProtocol(frame.OnlyIPv6)
	case t.Protocol == frame.OnlyIPv4:
		return ofProtocol(frame.OnlyIPv4)
	}
	return not(ofProtocol(frame.OnlyIPv6))
}

func direct(d frame.Direction, source, destination *node) *node {
	switch {
	case d == frame.Source:
		return source
	case d == frame.Destination:
		return destination
	case d == frame.Both || source == nil: // either both are always true, or none
		return and(source, destination)
	}
	return &node{op: frame.OpOr, left: source, right: destination}
}

// prefix compares an address word by word, as it lies in memory.
func prefix(f field, t frame.Term, order binary.ByteOrder) *node {
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

func ports(f field, t frame.Term) *node {
	if t.Ports.First == 0 && t.Ports.Last == 1<<16-1 {
		return nil
	}
	return within(f, uint32(t.Ports.First), uint32(t.Ports.Last))
}

// generator writes straight-line code with jumps forward only, a few instructions for
// each comparison, so that the verifier's work grows with the expression's length and
// no kernel takes it for a loop.
type generator struct {
	code   asm.Instructions
	labels int
	// pending is the label of the instruction that comes next.
	pending string
}

// generate is the body of flow_matches for an expression: R1 points to struct flow,
// the result is 0 or 1.
func generate(e *frame.Filter, order binary.ByteOrder) asm.Instructions {
	g := &generator{}
	yes, no := g.label(), g.label()
	g.emit(asm.Mov.Imm(asm.R0, 0))
	g.node(lower(e, order), yes, no, yes)
	g.pending = yes
	g.emit(asm.Mov.Imm(asm.R0, 1))
	g.pending = no
	g.emit(asm.Return())
	return g.code
}

func (g *generator) label() string {
	g.labels++
	return fmt.Sprintf("%s.%d", subprogram, g.labels)
}

func (g *generator) emit(i asm.Instruction) {
	if g.pending != "" {
		i = i.WithSymbol(g.pending)
		g.pending = ""
	}
	g.code = append(g.code, i)
}

// node goes to yes or to no. One of them is next: the label of what follows the code.
func (g *generator) node(n *node, yes, no, next string) {
	switch n.op {
	case frame.OpTerm:
		g.compare(n.compare, yes, no, next)
	case frame.OpNot:
		g.node(n.left, no, yes, next)
	case frame.OpAnd:
		right := g.label()
		g.node(n.left, right, no, right)
		g.pending = right
		g.node(n.right, yes, no, next)
	case frame.OpOr:
		right := g.label()
		g.node(n.left, yes, right, right)
		g.pending = right
		g.node(n.right, yes, no, next)
	}
}

// compare uses the jumps on 32 bits (Linux 5.1), for which a word has no sign.
func (g *generator) compare(c comparison, yes, no, next string) {
	const register = asm.R2
	g.emit(asm.LoadMem(register, asm.R1, int16(c.field.offset), c.field.size))
	if c.mask != noMask {
		g.emit(asm.And.Imm32(register, int32(c.mask)))
	}
	switch {
	case c.first == c.last && next == yes:
		g.emit(asm.JNE.Imm32(register, int32(c.first), no))
	case c.first == c.last:
		g.emit(asm.JEq.Imm32(register, int32(c.first), yes))
	case next == yes:
		g.emit(asm.JLT.Imm32(register, int32(c.first), no))
		g.emit(asm.JGT.Imm32(register, int32(c.last), no))
	default:
		g.emit(asm.JLT.Imm32(register, int32(c.first), no))
		g.emit(asm.JLE.Imm32(register, int32(c.last), yes))
	}
}
