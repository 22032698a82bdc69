package match

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/natkit/natkit/internal/frame"
)

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
