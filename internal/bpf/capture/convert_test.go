package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// judge runs converted filters on packets that lie in a map.
type judge struct {
	packets *ebpf.Map
	program *ebpf.Program
}

const (
	judged          = 128 // bytes of a packet at most
	testedInterface = 7
)

// newJudge returns nil where the verifier loses its way, as older ones do where a comparison cannot be true.
func newJudge(t *testing.T, filters ...[]bpf.RawInstruction) *judge {
	t.Helper()
	body, err := convert(filters)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16 + judged, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close() })
	// The value: length, type, EtherType and interface, four bytes each, and the packet.
	code := asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.StoreImm(asm.R2, 0, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, packets.FD()), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "none"),
		asm.LoadMem(asm.R2, asm.R0, 0, asm.Word), asm.LoadMem(asm.R3, asm.R0, 4, asm.Word), asm.LoadMem(asm.R4, asm.R0, 8, asm.Word), asm.LoadMem(asm.R5, asm.R0, 12, asm.Word),
		asm.JGT.Imm(asm.R2, judged, "none"),
		asm.Mov.Reg(asm.R1, asm.R0), asm.Add.Imm(asm.R1, 16), asm.Call.Label(subprogram), asm.Return(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("none"), asm.Return(),
	}
	body[0] = body[0].WithSymbol(subprogram)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: append(code, body...)})
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return &judge{packets, program}
}

func (j *judge) feeds(t *testing.T, kind, etherType uint32, packet []byte) uint32 {
	t.Helper()
	value := make([]byte, 16+judged)
	for i, word := range []uint32{uint32(len(packet)), kind, etherType, testedInterface} {
		binary.NativeEndian.PutUint32(value[4*i:], word)
	}
	copy(value[16:], packet)
	if err := j.packets.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	result, err := j.program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// slow is what a classic filter returns; extensions are what the virtual machine does not have.
func slow(t *testing.T, raw []bpf.RawInstruction, kind, etherType uint32, packet []byte) bool {
	t.Helper()
	program, _ := bpf.Disassemble(raw)
	for i, in := range program {
		if e, ok := in.(bpf.LoadExtension); ok {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: map[bpf.Extension]uint32{bpf.ExtType: kind, bpf.ExtProto: etherType, bpf.ExtInterfaceIndex: testedInterface}[e.Num]}
		}
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// TestConvert compares random filters, several at once, with the slow way.
func TestConvert(t *testing.T) {
	testutil.NeedRoot(t)
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	kept, dropped, unread, refused := 0, 0, 0, 0
	for round := range 150 {
		filters := make([][]bpf.RawInstruction, 1+r.IntN(3))
		for i := range filters {
			filters[i] = anyFilter(t, r)
		}
		j := newJudge(t, filters...)
		if j == nil {
			refused++
			continue
		}
		for range 30 {
			packet := make([]byte, 1+r.IntN(judged))
			for i := range packet {
				packet[i] = byte(r.IntN(8) * r.IntN(40))
			}
			kind, etherType := uint32(r.IntN(5)), []uint32{unix.ETH_P_IP, unix.ETH_P_IPV6}[r.IntN(2)]
			got := j.feeds(t, kind, etherType, packet)
			for i, raw := range filters {
				want, keeps := slow(t, raw, kind, etherType, packet), got>>i&1 == 1
				if want != keeps {
					t.Fatalf("round %d, filter %d: kept %v, want %v: %v\n%x", round, i, keeps, want, raw, packet)
				}
				if want {
					kept++
				} else {
					dropped++
				}
			}
			if got&beyond != 0 {
				unread++
			}
		}
	}
	t.Logf("%d filters are refused", refused)
	if refused > 100 || kept < 500 || dropped < 500 || unread < 100 {
		t.Errorf("%d kept, %d dropped, %d with a filter that wants more, %d refused: too few to tell", kept, dropped, unread, refused)
	}
}

// anyFilter makes one of all instructions.
func anyFilter(t *testing.T, r *rand.Rand) []bpf.RawInstruction {
	t.Helper()
	const most = 24
	program := []bpf.Instruction{bpf.StoreScratch{Src: bpf.RegA, N: 0}, bpf.StoreScratch{Src: bpf.RegX, N: 1}}
	for len(program) < most {
		left := most - len(program)
		program = append(program, anyInstruction(r, left))
	}
	program = append(program, bpf.RetA{}, bpf.RetConstant{Val: 0})
	raw, err := bpf.Assemble(program)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func anyInstruction(r *rand.Rand, left int) bpf.Instruction {
	tests := []bpf.JumpTest{bpf.JumpEqual, bpf.JumpNotEqual, bpf.JumpGreaterThan, bpf.JumpLessThan, bpf.JumpGreaterOrEqual,
		bpf.JumpLessOrEqual, bpf.JumpBitsSet, bpf.JumpBitsNotSet}
	operations := []bpf.ALUOp{bpf.ALUOpAdd, bpf.ALUOpSub, bpf.ALUOpMul, bpf.ALUOpOr, bpf.ALUOpAnd, bpf.ALUOpXor}
	register, skip := bpf.Register(r.IntN(2)), func() uint8 { return uint8(r.IntN(min(left, 5))) }
	number, size, at := uint32(r.IntN(300)), []int{1, 2, 4}[r.IntN(3)], uint32(r.IntN(70))
	switch r.IntN(15) {
	case 0:
		return bpf.LoadConstant{Dst: register, Val: number}
	case 1:
		return bpf.LoadScratch{Dst: register, N: r.IntN(2)}
	case 2:
		return bpf.StoreScratch{Src: register, N: r.IntN(2)}
	case 3, 4:
		return bpf.LoadAbsolute{Off: at, Size: size}
	case 5, 6:
		return bpf.LoadIndirect{Off: at, Size: size}
	case 7:
		return bpf.LoadMemShift{Off: at}
	case 8:
		return bpf.LoadExtension{Num: []bpf.Extension{bpf.ExtType, bpf.ExtProto, bpf.ExtInterfaceIndex}[r.IntN(3)]}
	case 9:
		return []bpf.Instruction{bpf.TAX{}, bpf.TXA{}, bpf.Jump{Skip: uint32(skip())}}[r.IntN(3)]
	case 10:
		return bpf.ALUOpConstant{Op: []bpf.ALUOp{bpf.ALUOpShiftLeft, bpf.ALUOpShiftRight, bpf.ALUOpDiv, bpf.ALUOpMod}[r.IntN(4)], Val: 1 + number%31}
	case 11:
		return bpf.ALUOpConstant{Op: operations[r.IntN(len(operations))], Val: number * 0x01010101}
	case 12:
		return bpf.ALUOpX{Op: operations[r.IntN(len(operations))]}
	case 13:
		return bpf.JumpIfX{Cond: tests[r.IntN(len(tests))], SkipTrue: skip(), SkipFalse: skip()}
	}
	return bpf.JumpIf{Cond: tests[r.IntN(len(tests))], Val: number, SkipTrue: skip(), SkipFalse: skip()}
}

// TestRefused: what cannot be converted is an error, and no filter that keeps something else.
func TestRefused(t *testing.T) {
	for _, program := range [][]bpf.Instruction{
		{bpf.LoadExtension{Num: bpf.ExtRand}, bpf.RetA{}},
		{bpf.ALUOpX{Op: bpf.ALUOpDiv}, bpf.RetA{}},
		{bpf.ALUOpX{Op: bpf.ALUOpShiftLeft}, bpf.RetA{}},
	} {
		raw, err := bpf.Assemble(program)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := convert([][]bpf.RawInstruction{raw}); err == nil {
			t.Errorf("%v was converted", program)
		}
	}
	if _, err := convert(make([][]bpf.RawInstruction, mostFilters+1)); err == nil {
		t.Error("more filters than bits were converted")
	}
	for _, raw := range [][]bpf.RawInstruction{{{Op: 0xffff}}, {{Op: 5, K: 7}, {Op: 6}}} {
		if _, err := convert([][]bpf.RawInstruction{raw}); err == nil {
			t.Errorf("%v was converted", fmt.Sprint(raw))
		}
	}
}
