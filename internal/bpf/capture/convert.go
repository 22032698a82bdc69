package capture

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/net/bpf"
)

// Registers of converted filters. Those of classic BPF are A and X, of 32 bits.
const (
	kept = asm.R0 // the result: a bit for each filter that keeps the packet
	// The arguments of the function: the packet, how much of it there is, PACKET_…, the EtherType and the interface.
	packet    = asm.R1
	length    = asm.R2
	kind      = asm.R3
	etherType = asm.R4
	iface     = asm.R5
	regA      = asm.R6
	regX      = asm.R7
	pointer   = asm.R8
	address   = asm.R9
)

// beyond is the bit of a filter that wants bytes beyond the end: BEYOND of capture.bpf.c.
const beyond = 1 << 8

// mostFilters is the number of bits of struct packet's feeds.
const mostFilters = 8

// ExtMask and those after it load one of a filter's Masks, which Capture.Mask sets. A packet socket has none.
const (
	ExtMask = bpf.Extension(0x800)
	Masks   = 2
)

// converter makes one function of the classic filters of packet sockets (net/core/filter.c), so that there is one
// text of each and packets are the same by both ways.
type converter struct {
	code    asm.Instructions
	filter  int
	loads   int
	program []bpf.Instruction
	// pending is the label of the next instruction.
	pending string
}

// convert returns the body of a function that returns the bits of the filters that keep a packet. One without instructions keeps nothing.
func convert(filters [][]bpf.RawInstruction) (asm.Instructions, error) {
	if len(filters) > mostFilters {
		return nil, fmt.Errorf("convert filters of packets: %d are more than %d", len(filters), mostFilters)
	}
	c := &converter{}
	c.emit(asm.Mov.Imm32(kept, 0))
	for i, raw := range filters {
		c.filter = i
		if err := c.convert(raw); err != nil {
			return nil, fmt.Errorf("convert a filter of packets: %w", err)
		}
	}
	c.emit(asm.Return())
	return c.code, nil
}

func (c *converter) convert(raw []bpf.RawInstruction) (err error) {
	var all bool
	if c.program, all = bpf.Disassemble(raw); !all {
		return errors.New("it has an unknown instruction")
	}
	c.emit(asm.Mov.Imm32(regA, 0), asm.Mov.Imm32(regX, 0))
	// The verifier refuses what no way leads to.
	reached := make([]bool, len(c.program)+1)
	reached[0] = true
	for n, in := range c.program {
		if !reached[n] {
			continue
		}
		for _, next := range after(n, in) {
			if next > len(c.program) {
				return fmt.Errorf("instruction %d: it jumps beyond the end", n)
			}
			reached[next] = true
		}
		c.pending = c.label(n)
		if err := c.instruction(n, in); err != nil {
			return fmt.Errorf("instruction %d: %w", n, err)
		}
	}
	c.pending = c.label(len(c.program))
	return nil
}

// after are the instructions that can follow one.
func after(n int, in bpf.Instruction) []int {
	switch in := in.(type) {
	case bpf.Jump:
		return []int{n + 1 + int(in.Skip)}
	case bpf.JumpIf:
		return []int{n + 1 + int(in.SkipTrue), n + 1 + int(in.SkipFalse)}
	case bpf.JumpIfX:
		return []int{n + 1 + int(in.SkipTrue), n + 1 + int(in.SkipFalse)}
	case bpf.RetA, bpf.RetConstant:
		return nil
	}
	return []int{n + 1}
}

func (c *converter) label(n int) string { return fmt.Sprintf("%s.%d.%d", subprogram, c.filter, n) }

// end is the label behind the filter.
func (c *converter) end() string { return c.label(len(c.program)) }

func (c *converter) emit(instructions ...asm.Instruction) {
	for _, i := range instructions {
		if c.pending != "" {
			i = i.WithSymbol(c.pending)
			c.pending = ""
		}
		c.code = append(c.code, i)
	}
}

func (c *converter) instruction(n int, in bpf.Instruction) error {
	switch in := in.(type) {
	case bpf.LoadConstant:
		c.emit(asm.Mov.Imm32(register(in.Dst), int32(in.Val)))
	case bpf.LoadScratch:
		c.emit(asm.LoadMem(register(in.Dst), asm.R10, scratch(in.N), asm.DWord))
	case bpf.StoreScratch:
		c.emit(asm.StoreMem(asm.R10, scratch(in.N), register(in.Src), asm.DWord))
	case bpf.LoadAbsolute:
		c.emit(asm.Mov.Imm(address, int32(in.Off)))
		return c.load(regA, in.Size)
	case bpf.LoadIndirect:
		c.emit(asm.Mov.Reg32(address, regX), asm.Add.Imm(address, int32(in.Off)))
		return c.load(regA, in.Size)
	case bpf.LoadMemShift:
		c.emit(asm.Mov.Imm(address, int32(in.Off)))
		if err := c.load(regX, 1); err != nil {
			return err
		}
		c.emit(asm.And.Imm32(regX, 0xf), asm.LSh.Imm32(regX, 2))
	case bpf.LoadExtension:
		return c.extension(in.Num)
	case bpf.TAX:
		c.emit(asm.Mov.Reg32(regX, regA))
	case bpf.TXA:
		c.emit(asm.Mov.Reg32(regA, regX))
	case bpf.RetConstant:
		if in.Val > 0 {
			c.emit(asm.Or.Imm32(kept, 1<<c.filter))
		}
		c.emit(asm.Ja.Label(c.end()))
	case bpf.RetA:
		c.emit(asm.JEq.Imm32(regA, 0, c.end()), asm.Or.Imm32(kept, 1<<c.filter), asm.Ja.Label(c.end()))
	case bpf.Jump:
		c.emit(asm.Ja.Label(c.label(n + 1 + int(in.Skip))))
	default:
		return c.compute(n, in)
	}
	return nil
}

func register(r bpf.Register) asm.Register {
	if r == bpf.RegX {
		return regX
	}
	return regA
}

// scratch is where a word of scratch memory is on the stack: of eight bytes each, of which the verifier knows what
// was stored.
func scratch(n int) int16 { return int16(-8 * (n + 1)) }

// load loads what begins at the offset in address. A packet that ends before is not kept, or looked at again
// when more of it has been read.
func (c *converter) load(to asm.Register, size int) error {
	as, ok := map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word}[size]
	if !ok {
		return fmt.Errorf("it loads %d bytes", size)
	}
	c.loads++
	inside := fmt.Sprintf("%s.%d.load%d", subprogram, c.filter, c.loads)
	c.emit(asm.Add.Imm(address, int32(size)), asm.JLE.Reg(address, length, inside), asm.Or.Imm32(kept, beyond), asm.Ja.Label(c.end()))
	c.pending = inside
	c.emit(asm.Mov.Reg(pointer, packet), asm.Add.Reg(pointer, address), asm.LoadMem(to, pointer, int16(-size), as))
	if size > 1 {
		c.emit(asm.HostTo(asm.BE, to, as))
	}
	return nil
}

func (c *converter) extension(e bpf.Extension) error {
	if n := e - ExtMask; n >= 0 && n < Masks {
		const bytes = 4
		c.emit(asm.LoadMapValue(address, 0, uint32(c.filter*Masks+int(n))*bytes).WithReference(captureMapMasks), asm.LoadMem(regA, address, 0, asm.Word))
		return nil
	}
	from, ok := map[bpf.Extension]asm.Register{bpf.ExtType: kind, bpf.ExtProto: etherType, bpf.ExtInterfaceIndex: iface}[e]
	if !ok {
		return fmt.Errorf("it asks for what the program does not have (extension %d)", e)
	}
	c.emit(asm.Mov.Reg32(regA, from))
	return nil
}

var operations = map[bpf.ALUOp]asm.ALUOp{
	bpf.ALUOpAdd: asm.Add, bpf.ALUOpSub: asm.Sub, bpf.ALUOpMul: asm.Mul, bpf.ALUOpOr: asm.Or, bpf.ALUOpAnd: asm.And,
	bpf.ALUOpShiftLeft: asm.LSh, bpf.ALUOpShiftRight: asm.RSh, bpf.ALUOpXor: asm.Xor, bpf.ALUOpDiv: asm.Div, bpf.ALUOpMod: asm.Mod,
}

var tests = map[bpf.JumpTest]asm.JumpOp{
	bpf.JumpEqual: asm.JEq, bpf.JumpNotEqual: asm.JNE, bpf.JumpGreaterThan: asm.JGT, bpf.JumpLessThan: asm.JLT,
	bpf.JumpGreaterOrEqual: asm.JGE, bpf.JumpLessOrEqual: asm.JLE, bpf.JumpBitsSet: asm.JSet, bpf.JumpBitsNotSet: asm.JSet,
}

// compute converts arithmetic and comparisons. The jumps on 32 bits are of Linux 5.1.
func (c *converter) compute(n int, in bpf.Instruction) error {
	switch in := in.(type) {
	case bpf.ALUOpConstant:
		c.emit(operations[in.Op].Imm32(regA, int32(in.Val)))
	case bpf.ALUOpX:
		switch in.Op { // classic shifts and divisions by X have rules of their own
		case bpf.ALUOpAdd, bpf.ALUOpSub, bpf.ALUOpMul, bpf.ALUOpOr, bpf.ALUOpAnd, bpf.ALUOpXor:
			c.emit(operations[in.Op].Reg32(regA, regX))
		default:
			return fmt.Errorf("%v is not supported", in)
		}
	case bpf.JumpIf:
		yes, no := c.branches(n, in.Cond, in.SkipTrue, in.SkipFalse)
		c.emit(tests[in.Cond].Imm32(regA, int32(in.Val), yes), asm.Ja.Label(no))
	case bpf.JumpIfX:
		yes, no := c.branches(n, in.Cond, in.SkipTrue, in.SkipFalse)
		c.emit(tests[in.Cond].Reg32(regA, regX, yes), asm.Ja.Label(no))
	default:
		return fmt.Errorf("%v is not supported", in)
	}
	return nil
}

// branches are the labels where a comparison goes: eBPF has no test for bits that are not set.
func (c *converter) branches(n int, test bpf.JumpTest, skipTrue, skipFalse uint8) (yes, no string) {
	yes, no = c.label(n+1+int(skipTrue)), c.label(n+1+int(skipFalse))
	if test == bpf.JumpBitsNotSet {
		return no, yes
	}
	return yes, no
}
