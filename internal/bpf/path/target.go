package path

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// maxArgs are the arguments that a program finds in registers, on all processors.
const maxArgs = 5

// target is a function to watch.
type target struct {
	bpf.Function
	arg int // that of the skb, from 1
}

// types finds functions in the kernel's and its modules' BTF. What a module lacks
// is remembered.
type types struct {
	cache   *btf.Cache
	modules map[string]*btf.Spec
}

func newTypes() *types { return &types{btf.NewCache(), map[string]*btf.Spec{}} }

// spec is nil where there are no types.
func (t *types) spec(module string) *btf.Spec {
	s, tried := t.modules[module]
	if tried {
		return s
	}
	var err error
	if module == "" {
		s, err = t.cache.Kernel()
	} else {
		s, err = t.cache.Module(module)
	}
	if err != nil {
		s = nil
	}
	t.modules[module] = s
	return s
}

// function returns a function's type.
func (t *types) function(f bpf.Function) *btf.FuncProto {
	spec := t.spec(f.Module)
	if spec == nil {
		return nil
	}
	var found *btf.Func
	if err := spec.TypeByName(f.Name, &found); err != nil {
		return nil
	}
	proto, _ := found.Type.(*btf.FuncProto)
	return proto
}

// argOf returns which argument of a function points to a structure, from 1; 0: none
// of those in registers.
func argOf(proto *btf.FuncProto, structure string) int {
	if proto == nil {
		return 0
	}
	for i, p := range proto.Params {
		if i < maxArgs && pointsTo(p.Type, structure) {
			return i + 1
		}
	}
	return 0
}

// pointsTo reports whether typ is a pointer to a structure. A module's BTF may only
// announce it.
func pointsTo(typ btf.Type, structure string) bool {
	p, ok := btf.UnderlyingType(typ).(*btf.Pointer)
	if !ok {
		return false
	}
	switch s := btf.UnderlyingType(p.Target).(type) {
	case *btf.Struct:
		return s.Name == structure
	case *btf.Fwd:
		return s.Name == structure
	}
	return false
}

// selected are the functions of a kernel that a run watches.
type selected struct {
	steps, copied, freed, decide []target
}

// choose finds the functions that patterns name, and those that every run needs.
func choose(table *bpf.Table, types *types, patterns []string) (selected, error) {
	var s selected
	lists := []struct {
		to   *[]target
		want matcher
	}{
		{&s.steps, newMatcher(patterns)}, {&s.copied, newMatcher(known.lists["copied"])},
		{&s.freed, newMatcher(known.lists["freed"])}, {&s.decide, newMatcher(known.lists["decide"])},
	}
	never := newMatcher(known.lists["never"])
	for f := range table.All() {
		for _, l := range lists {
			if !l.want.match(f.Name) || l.to == &s.steps && never.match(f.Name) {
				continue
			}
			if arg := argOf(types.function(f), "sk_buff"); arg > 0 || l.to == &s.decide && hasPktinfo(types.function(f)) {
				*l.to = append(*l.to, target{f, arg})
			}
		}
	}
	for _, l := range lists {
		*l.to = withoutTwins(*l.to)
	}
	if len(s.steps) == 0 {
		return s, noneFound(types)
	}
	return s, nil
}

// inPktinfo finds the argument by which functions of nf_tables get the packet, from
// 1, and where in that structure the skb is; 0 where there is none. The programs do
// not know the structure: nf_tables is a module that may not be loaded.
func inPktinfo(proto *btf.FuncProto) (arg int, offset uint32) {
	arg = argOf(proto, "nft_pktinfo")
	if arg == 0 {
		return 0, 0
	}
	pointer, _ := btf.UnderlyingType(proto.Params[arg-1].Type).(*btf.Pointer)
	info, ok := btf.UnderlyingType(pointer.Target).(*btf.Struct)
	if !ok {
		return 0, 0
	}
	for _, m := range info.Members {
		if m.Name == "skb" {
			return arg, m.Offset.Bytes()
		}
	}
	return 0, 0
}

func hasPktinfo(proto *btf.FuncProto) bool {
	arg, _ := inPktinfo(proto)
	return arg > 0
}

func noneFound(types *types) error {
	if types.spec("") == nil {
		return errors.New("this kernel has no description of its functions: it needs CONFIG_DEBUG_INFO_BTF")
	}
	return errors.New("no function of this kernel that gets a packet (struct sk_buff *) has such a name; modules count once they are loaded")
}

// withoutTwins leaves out names that several functions have: which of them the
// types describe is not known.
func withoutTwins(list []target) []target {
	seen := map[string]int{}
	for _, t := range list {
		seen[t.Name]++
	}
	return slices.DeleteFunc(list, func(t target) bool { return seen[t.Name] > 1 })
}

// reasons are none where the kernel has no types.
func (t *types) reasons() *bpf.Reasons {
	if table, err := bpf.ReadReasons(t.cache); err == nil {
		return table
	}
	return &bpf.Reasons{}
}

// addresses returns a packet's source and destination.
func addresses(e *pathEvent) snapshot.PathAddresses {
	f := &e.Flow
	var a snapshot.PathAddresses
	if f.L3 != 0 { // else it is not yet known
		a.Protocol = bpf.ProtocolName(f.L3, f.Proto, f.L3 == unix.ETH_P_IP || f.L3 == unix.ETH_P_IPV6)
	}
	if f.Flags&bpf.HasAddresses == 0 {
		return a
	}
	a.Source = bpf.End(bpf.Address(f.L3, f.Saddr), f.Sport)
	a.Destination = bpf.End(bpf.Address(f.L3, f.Daddr), f.Dport)
	a.TTL = int(f.Ttl)
	if f.Proto == unix.IPPROTO_TCP && f.Flags&bpf.HasPorts != 0 {
		a.TCPFlags = bpf.TCPFlags(f.TcpFlags)
	}
	if f.Flags&bpf.IsFragment != 0 {
		a.Protocol += " fragment"
	}
	return a
}

// deviceName returns an interface's name as read from the kernel. The name is untrusted:
// all but printable ASCII characters are shown as "?".
func deviceName(raw [16]int8) string {
	name := make([]byte, 0, len(raw))
	for _, c := range raw {
		switch b := byte(c); {
		case b == 0:
			return string(name)
		case b <= ' ' || b >= 0x7f:
			name = append(name, '?')
		default:
			name = append(name, b)
		}
	}
	return string(name)
}
