package natrules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/tune"
)

// options are what the rule has now.
func (e *edit) options() tune.NATOptions {
	var o tune.NATOptions
	flags := uint32(0)
	switch {
	case e.xt != nil:
		flags, o.FirstPort, o.LastPort = e.xt.flags, e.xt.firstPort, e.xt.lastPort
	default:
		x := e.rule.exprs[e.at]
		flags = x.data.u32(natAttrsOf[x.name].flags)
		if e.portMin >= 0 {
			o.FirstPort, o.LastPort = e.port(e.portMin), e.port(e.portMax)
		}
	}
	o.Random = flags&rangeRandom != 0
	o.FullyRandom = flags&rangeFullyRandom != 0
	o.Persistent = flags&rangePersistent != 0
	return o
}

func (e *edit) port(i int) uint16 {
	return beUint16(e.rule.exprs[i].data.nested(nftImmediateData).get(nftDataValue))
}

// withPorts are the protocols that NAT gives ports to; iptables and nft take a
// range of ports only behind a condition on them.
var withPorts = []string{"tcp", "udp", "udplite", "sctp", "dccp"}

// accepts says why a rule for these protocols (none: for all) cannot have the
// options, or could not be given back those that it has.
func (e *edit) accepts(o tune.NATOptions, protocols []string) error {
	other := func(p string) bool { return !slices.Contains(withPorts, p) }
	was := e.options()
	if (o.FirstPort != 0) != (was.FirstPort != 0) && (len(protocols) == 0 || slices.ContainsFunc(protocols, other)) {
		return errors.New("it is not only for protocols that have ports, and iptables and nft take a range of ports nowhere else: make rules for tcp and udp in the program that loads them, or change only its options (fully-random)")
	}
	name := e.rule.exprs[e.at].data.text(nftXtName)
	if e.xt != nil && name == "MASQUERADE" && o.Persistent {
		return errors.New("iptables' MASQUERADE has no option persistent")
	}
	return nil
}

func rangeFlags(o tune.NATOptions) (flags uint32) {
	for _, f := range []struct {
		on   bool
		flag uint32
	}{{o.FirstPort != 0, rangePorts}, {o.Random, rangeRandom}, {o.FullyRandom, rangeFullyRandom}, {o.Persistent, rangePersistent}} {
		if f.on {
			flags |= f.flag
		}
	}
	return flags
}

// expressions are the rule's with other options: what NFTA_RULE_EXPRESSIONS holds.
// All others are as the kernel told them, counters included.
func (e *edit) expressions(o tune.NATOptions, rename map[string]newSet) ([]byte, error) {
	var b []byte
	for i, x := range e.rule.exprs {
		switch {
		case e.portImmediate(i):
		case i == e.at && e.xt != nil:
			data := replaceAttr(x.data, nftXtInfo, e.withRange(rangeFlags(o), o.FirstPort, o.LastPort))
			b = appendExpr(b, x.name, data)
		case i == e.at:
			with, err := e.translation(o)
			if err != nil {
				return nil, err
			}
			b = append(b, with...)
		case x.name == "lookup" && rename[x.data.text(nftLookupSet)].id != 0:
			b = appendExpr(b, x.name, rename[x.data.text(nftLookupSet)].lookup(x.data))
		default:
			b = appendAttr(b, nftListElem|nlaNested, x.raw)
		}
	}
	return b, nil
}

// translation is nat or masq, behind the immediates that load its ports.
func (e *edit) translation(o tune.NATOptions) ([]byte, error) {
	x := e.rule.exprs[e.at]
	n := natAttrsOf[x.name]
	var before, data []byte
	for _, a := range x.data {
		if a.kind != n.portMin && a.kind != n.portMax && a.kind != n.flags {
			data = append(data, a.raw...)
		}
	}
	if flags := x.data.u32(n.flags)&^portFlags | rangeFlags(o); flags != 0 {
		data = appendU32(data, n.flags, flags)
	}
	free := e.freeRegisters(n)
	load := func(kind uint16, port uint16) {
		before = appendExpr(before, "immediate", immediatePort(free[0], port))
		data = appendU32(data, kind, free[0])
		free = free[1:]
	}
	if o.FirstPort != 0 {
		if len(free) < 2 {
			return nil, fmt.Errorf("rule %d of %s: no register is free for ports", e.rule.handle, e.rule.chain)
		}
		load(n.portMin, o.FirstPort)
		if o.LastPort != o.FirstPort {
			load(n.portMax, o.LastPort)
		}
	}
	return appendExpr(before, x.name, data), nil
}

// freeRegisters are those of NFT_REG_1 to NFT_REG_4 that do not hold addresses.
// Whatever else is in them nobody reads after a translation, which ends the rule.
func (e *edit) freeRegisters(n natAttrs) []uint32 {
	a := e.rule.exprs[e.at].data
	free := []uint32{1, 2, 3, 4}
	for _, kind := range []uint16{n.addrMin, n.addrMax} {
		if kind != 0 && a.has(kind) {
			used := slot(a.u32(kind))/4 + 1
			free = slices.DeleteFunc(free, func(r uint32) bool { return r == used })
		}
	}
	return free
}

func immediatePort(register uint32, port uint16) []byte {
	value := appendAttr(nil, nftDataValue, binary.BigEndian.AppendUint16(nil, port))
	return appendAttr(appendU32(nil, nftImmediateDreg, register), nftImmediateData|nlaNested, value)
}

func appendExpr(b []byte, name string, data []byte) []byte {
	e := appendAttr(appendText(nil, nftExprName, name), nftExprData|nlaNested, data)
	return appendAttr(b, nftListElem|nlaNested, e)
}

// replaceAttr writes attributes out again, one of them with other content.
func replaceAttr(a attrs, kind uint16, data []byte) []byte {
	var b []byte
	for _, x := range a {
		if x.kind == kind {
			b = appendAttr(b, kind, data)
		} else {
			b = append(b, x.raw...)
		}
	}
	return b
}
