package bpf

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// TestThreeWays compares, frame by frame, tcpdump's program, matches and the
// kernel's run of flow_matches.
func TestThreeWays(t *testing.T) {
	testutil.NeedRoot(t)
	tcpdump := testutil.NeedProgram(t, "tcpdump")
	random := rand.New(rand.NewPCG(3, 4))
	whole := wholeFrames(random)
	cut, boundary := cutFrames()
	k := newKernel(t, append(whole, cut...))
	expressions := append(terms(), combinations...)
	single := len(terms())
	for range 400 {
		expressions = append(expressions, someExpression(random, 2))
	}
	matched := 0
	for i, words := range expressions {
		c := compile(t, tcpdump, words)
		k.install(t, mustParse(t, words))
		for j, frame := range whole {
			want := c.matches(t, frame)
			if want {
				matched++
			}
			k.check(t, j, words, want)
		}
		for j, frame := range cut {
			got, want := k.check(t, len(whole)+j, words, k.match(len(whole)+j)), c.matches(t, frame)
			if i < single && (got && !want || boundary[j] && got != want) {
				t.Errorf("%q: frame %x: %v, by tcpdump %v", words, frame, got, want)
			}
		}
	}
	if all := len(expressions) * len(whole); matched < all/10 || matched > all*9/10 {
		t.Errorf("%d of %d comparisons match: frames and filters are not well chosen", matched, all)
	}
	if t.Failed() {
		t.Log("frames and expressions are made with a fixed seed")
	}
}

// TestOddFrames: what the words say of frames that libpcap reads otherwise.
func TestOddFrames(t *testing.T) {
	testutil.NeedRoot(t)
	k := newKernel(t, oddFrames())
	for words, want := range map[string][]bool{
		"tcp":                    {true, false, false},
		"host 10.0.0.1":          {true, false, false},
		"port 80":                {false, false, false},
		"portrange 0-65535":      {false, false, false},
		"not port 80":            {true, true, true},
		"net 0.0.0.0/0":          {true, false, false},
		"not ip and not host ::": {false, true, true},
	} {
		k.install(t, mustParse(t, words))
		for i, w := range want {
			k.check(t, i, words, w)
		}
	}
}

func mustParse(t testing.TB, words string) *frame.Filter {
	t.Helper()
	e, err := frame.ParseFilter([]string{words})
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	return e
}

// kernel has a program with frames to run over.
type kernel struct {
	spec    *ebpf.CollectionSpec
	maps    map[string]*ebpf.Map
	frames  [][]byte
	packets []flow
	expr    *frame.Filter
	program *ebpf.Program
}

// newKernel puts the frames into the program's map. Behind the end of a frame lies
// what was there before, as behind a packet in its skb.
func newKernel(t testing.TB, frames [][]byte) *kernel {
	t.Helper()
	spec, err := loadMatch()
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{spec: spec, frames: frames, maps: map[string]*ebpf.Map{}}
	for name, m := range spec.Maps {
		made, err := ebpf.NewMap(m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { made.Close() })
		k.maps[name] = made
	}
	for i, frame := range frames {
		if i >= int(spec.Maps["frames"].MaxEntries) {
			t.Fatalf("%d frames are too many", len(frames))
		}
		value := matchFrame{NetworkHeader: 14, Protocol: binary.NativeEndian.Uint16(frame[12:]), Tail: uint32(len(frame))}
		copy(value.Data[copy(value.Data[:], frame[:cap(frame)]):], frame)
		if err := k.maps["frames"].Put(uint32(i), &value); err != nil {
			t.Fatal(err)
		}
		k.packets = append(k.packets, parseFrame(frame))
	}
	return k
}

// install loads the program with a filter.
func (k *kernel) install(t testing.TB, e *frame.Filter) {
	t.Helper()
	k.expr = e
	spec := k.spec.Copy()
	if err := Install(spec.Programs["match_frame"], e); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: k.maps})
	if err != nil {
		t.Fatalf("%q: %+v", e, err)
	}
	if k.program != nil {
		k.program.Close()
	}
	k.program = c.DetachProgram("match_frame")
	c.Close()
	t.Cleanup(func() { k.program.Close() })
}

func (k *kernel) match(i int) bool { return matches(k.expr, k.packets[i]) }

// check runs the program over a frame, and compares what it parses and what it finds
// with filter's; both have to be want.
func (k *kernel) check(t *testing.T, i int, words string, want bool) bool {
	t.Helper()
	result, err := k.program.Run(&ebpf.RunOptions{Context: uint64(i)})
	if err != nil {
		t.Fatal(err)
	}
	if result > 1 {
		t.Fatalf("%q: frame %d: the program returns %d", words, i, result)
	}
	if inKernel, inGo := result == 1, k.match(i); inKernel != want || inGo != want {
		t.Errorf("%q: frame %x: want %v; the eBPF program says %v, matches %v", words, k.frames[i], want, inKernel, inGo)
	}
	return result == 1
}

// TestFlowIsParsedAlike compares parse_flow with parseFrame.
func TestFlowIsParsedAlike(t *testing.T) {
	testutil.NeedRoot(t)
	cut, _ := cutFrames()
	k := newKernel(t, append(append(wholeFrames(rand.New(rand.NewPCG(5, 6))), cut...), oddFrames()...))
	k.install(t, nil)
	flags := uint8(0)
	for i, want := range k.packets {
		k.check(t, i, "", true)
		var got flow
		if err := k.maps["flows"].Lookup(uint32(i), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(flow{})); diff != "" {
			t.Errorf("frame %x:\n%s", k.frames[i], diff)
		}
		flags |= got.Flags
	}
	if flags != HasAddresses|HasPorts|IsFragment {
		t.Errorf("the frames have the flags %b only", flags)
	}
}

// TestLayout holds flow against struct flow, by its BTF.
func TestLayout(t *testing.T) {
	spec, err := loadMatch()
	if err != nil {
		t.Fatal(err)
	}
	var inC *btf.Struct
	if err := spec.Types.TypeByName("flow", &inC); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(layoutOf(flow{}), layoutOfStruct(t, inC)); diff != "" {
		t.Error(diff)
	}
}
