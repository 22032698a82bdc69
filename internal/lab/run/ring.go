package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

const (
	// smallBlock is the size of a block, unless packets are kept that are longer: the kernel
	// hands over whole ones, so that few large ones are soon all under way.
	smallBlock = 128 << 10
	largeBlock = 1 << 20
	// retire is after how many milliseconds the kernel hands over a block that is not full.
	retire = 20
	// pollWait is the time between checks of a ring without packets whether it should
	// end, in milliseconds.
	pollWait = 50
)

// ring is a packet socket whose packets the kernel writes into blocks of shared memory
// (TPACKET_V3, Documentation/networking/packet_mmap.rst).
//
// gopacket's afpacket does the same, but reads the place of a block's first packet
// before it knows that the kernel has written it, and begins to capture before its
// filter is attached.
type ring struct {
	fd     int
	memory []byte
	size   int // of a block
	block  int // the next one to read
	// read counts packets that were handed on. The kernel counted the others: all that
	// its filter let pass, and those of them that found no room.
	handed, passed, dropped uint64
}

// captured is one packet in a ring; data is the kernel's again after the call.
type captured struct {
	ifindex int
	at      time.Time
	length  int // on the wire
	data    []byte
}

// indexes are the numbers of interfaces in the calling thread's namespace, in their order.
func indexes(interfaces []string) (all []int, err error) {
	for _, name := range interfaces {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		all = append(all, link.Index)
	}
	return all, nil
}

// openRing captures in the calling thread's namespace. The socket has no protocol until
// its filter and its ring stand, so that nothing comes before.
func openRing(indexes []int, snapLen, bytes int) (*ring, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket (needs CONFIG_PACKET): %w", netns.Denied(err, netns.NetRaw))
	}
	r := &ring{fd: fd, size: blockSize(snapLen)}
	if err := r.prepare(indexes, snapLen, bytes); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// blockSize has room for several packets of which keep bytes are kept.
func blockSize(keep int) int {
	if keep > smallBlock/8 {
		return largeBlock
	}
	return smallBlock
}

func (r *ring) prepare(indexes []int, snapLen, bytes int) error {
	if err := r.attach(onlyInterfaces(indexes, snapLen)); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return fmt.Errorf("choose TPACKET_V3: %w (needs CONFIG_PACKET)", err)
	}
	blocks := max(bytes/r.size, 2)
	request := unix.TpacketReq3{
		Block_size: uint32(r.size), Block_nr: uint32(blocks),
		Frame_size: uint32(r.size), Frame_nr: uint32(blocks), // no meaning in V3, but checked
		Retire_blk_tov: retire,
	}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return fmt.Errorf("make a ring of %d bytes: %w", blocks*r.size, err)
	}
	var err error
	if r.memory, err = unix.Mmap(r.fd, 0, blocks*r.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the ring: %w", err)
	}
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)}
	if len(indexes) == 1 {
		to.Ifindex = indexes[0]
	}
	if err := unix.Bind(r.fd, to); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	return nil
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// onlyInterfaces keeps the first bytes of packets of the interfaces, and drops others.
func onlyInterfaces(indexes []int, keep int) []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtInterfaceIndex}}
	for _, index := range indexes {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(index), SkipTrue: 1},
			bpf.RetConstant{Val: uint32(keep)})
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// attach replaces the socket's filter.
func (r *ring) attach(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble packet filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		code[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	filter := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return fmt.Errorf("attach packet filter: %w", err)
	}
	return nil
}

// mute lets no further packet in.
func (r *ring) mute() error { return r.attach([]bpf.Instruction{bpf.RetConstant{Val: 0}}) }

// status is the word of a block by which the kernel hands it over and takes it back.
func (r *ring) status() *uint32 {
	hdr := (*unix.TpacketHdrV1)(unsafe.Pointer(&r.header().Hdr[0]))
	return &hdr.Block_status
}

func (r *ring) header() *unix.TpacketBlockDesc {
	return (*unix.TpacketBlockDesc)(unsafe.Pointer(&r.memory[r.block*r.size]))
}

// read hands on the packets of the blocks that are ready, each block of the ring once
// at most, and waits a moment where none is. The counters are up to date then.
func (r *ring) read(fn func(captured)) error {
	blocks := len(r.memory) / r.size
	n := 0
	for ; n < blocks && atomic.LoadUint32(r.status())&unix.TP_STATUS_USER != 0; n++ {
		if err := r.readBlock(fn); err != nil {
			return err
		}
		atomic.StoreUint32(r.status(), unix.TP_STATUS_KERNEL)
		r.block = (r.block + 1) % blocks
	}
	if n == 0 {
		if err := r.wait(); err != nil {
			return err
		}
	}
	return r.count()
}

func (r *ring) wait() error {
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, pollWait)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for packets: %w", err)
	}
	if fds[0].Revents&unix.POLLERR != 0 { // an interface has gone down; it may come back
		_, err = unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return fmt.Errorf("wait for packets: %w", err)
		}
	}
	return nil
}

// errRing: what the kernel wrote leads out of its block, which it never does.
var errRing = errors.New("read captured packets: the ring does not hold together")

func (r *ring) readBlock(fn func(captured)) error {
	block := r.memory[r.block*r.size:][:r.size]
	hdr := (*unix.TpacketHdrV1)(unsafe.Pointer(&r.header().Hdr[0]))
	at := int(hdr.Offset_to_first_pkt)
	for range hdr.Num_pkts {
		if at < 0 || at+unix.SizeofTpacket3Hdr+unix.SizeofSockaddrLinklayer > r.size {
			return errRing
		}
		p := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		first := at + int(p.Mac)
		if last := first + int(p.Snaplen); last > r.size {
			return errRing
		}
		// The address follows the header, aligned to 16 bytes, which it is.
		from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&block[at+unix.SizeofTpacket3Hdr]))
		fn(captured{
			ifindex: int(from.Ifindex),
			at:      time.Unix(int64(p.Sec), int64(p.Nsec)),
			length:  int(p.Len),
			data:    block[first:][:p.Snaplen],
		})
		r.handed++
		at += int(p.Next_offset)
	}
	return nil
}

// count adds the kernel's counters, which each read resets.
func (r *ring) count() error {
	stats, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("read the statistics of a packet socket: %w", err)
	}
	r.passed += uint64(stats.Packets)
	r.dropped += uint64(stats.Drops)
	return nil
}

// drained reports whether all packets that the kernel counted were handed on or dropped.
func (r *ring) drained() bool { return r.handed+r.dropped >= r.passed }

// lost are the packets that passed the filter and were never handed on.
func (r *ring) lost() uint64 {
	if r.handed >= r.passed {
		return r.dropped
	}
	return r.passed - r.handed
}

func (r *ring) close() {
	if r.memory != nil {
		_ = unix.Munmap(r.memory)
	}
	unix.Close(r.fd)
}
