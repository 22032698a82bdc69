package natrules

import (
	"bytes"
	"encoding/binary"
)

// edit is where a rule has the ports and options of its translation.
type edit struct {
	rule *kernelRule
	at   int // the expression that translates
	// portMin and portMax are the immediates that load the ports, -1 where there
	// are none; the same for a single port.
	portMin, portMax int
	// xt is the range of an x_tables target, blob its structure.
	xt   *natRange
	blob []byte
}

// editable finds them; false where a rule does not translate the source, or in a
// way in which natkit cannot change it: twice, or to ports that a map gives.
func editable(r *kernelRule) (edit, bool) {
	e := edit{rule: r, at: -1, portMin: -1, portMax: -1}
	for i, x := range r.exprs {
		if x.name == "target" && xtKinds[x.data.text(nftXtName)] == "" || x.name != "target" && natAttrsOf[x.name].flags == 0 {
			continue
		}
		if e.at >= 0 {
			return e, false
		}
		e.at = i
	}
	if e.at < 0 {
		return e, false
	}
	if x := r.exprs[e.at]; x.name == "target" {
		return e, e.findRange(x.data)
	}
	return e, e.findPorts()
}

// findRange: NETMAP and what translates the destination are left alone.
func (e *edit) findRange(a attrs) bool {
	name := a.text(nftXtName)
	if name != "MASQUERADE" && name != "SNAT" {
		return false
	}
	e.blob = a.get(nftXtInfo)
	n, ok := xtRange(name, a.u32(nftXtRevision), e.blob, e.rule.family == familyIP6)
	e.xt = &n
	return ok
}

func (e *edit) findPorts() bool {
	x := e.rule.exprs[e.at]
	n := natAttrsOf[x.name]
	if x.name == "redir" || x.name == "nat" && x.data.u32(1) != 0 { // NFT_NAT_SNAT
		return false
	}
	if x.data.u32(n.flags)&rangeNetmap != 0 {
		return false
	}
	if !x.data.has(n.portMin) {
		return true
	}
	e.portMin = e.loader(x.data.u32(n.portMin))
	e.portMax = e.portMin
	if x.data.has(n.portMax) {
		e.portMax = e.loader(x.data.u32(n.portMax))
	}
	return e.portMin >= 0 && e.portMax >= 0
}

// loader is the immediate that a register has its value from; -1 where it is not
// among those that stand right before the translation, which nothing else reads.
func (e *edit) loader(register uint32) int {
	for i := e.at - 1; i >= 0; i-- {
		x := e.rule.exprs[i]
		switch dreg := x.data.u32(nftImmediateDreg); {
		case x.name == "counter":
		case x.name != "immediate" || dreg == 0:
			return -1
		case slot(dreg) == slot(register):
			return i
		}
	}
	return -1
}

func (e *edit) portImmediate(i int) bool { return i >= 0 && (i == e.portMin || i == e.portMax) }

// portFlags are those that a change of options changes.
const portFlags = rangePorts | rangeRandom | rangeFullyRandom | rangePersistent

// masked is the expression that translates, without ports and options.
func (e *edit) masked() []byte {
	x := e.rule.exprs[e.at]
	if e.xt == nil {
		n := natAttrsOf[x.name]
		return binary.BigEndian.AppendUint32(without(x.data, n.portMin, n.portMax, n.flags), x.data.u32(n.flags)&rangeNetmap)
	}
	return append(without(x.data, nftXtInfo), e.withRange(0, 0, 0)...)
}

// withRange is the target's structure with other ports and options.
func (e *edit) withRange(flags uint32, first, last uint16) []byte {
	b := bytes.Clone(e.blob)
	binary.NativeEndian.PutUint32(b[e.xt.flagsAt:], e.xt.flags&^portFlags|flags)
	binary.BigEndian.PutUint16(b[e.xt.portsAt:], first)
	binary.BigEndian.PutUint16(b[e.xt.portsAt+2:], last)
	return b
}
