package behaviour

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
)

// etherTypeMark is IEEE 802's Local Experimental EtherType 1, that of the frames that
// signal on a wire that all before them has passed.
const etherTypeMark = 0x88b5

// wires are the packet sockets at the far ends of the gateway's interfaces, where the
// hosts are, and at the gateway's ends, which see marks only.
//
// Nothing has to be waited for by time. What a thread sends into a veth is handled by
// its CPU in the order in which it was sent (the backlog of enqueue_to_backlog in
// net/core/dev.c, or the one receive queue of the veth where it polls). So when a
// mark that was sent behind a packet has come to the gateway's end, the gateway
// has handled the packet and sent what it sends; and when marks have then come from
// there to all far ends, all of that has arrived.
type wires struct {
	near, far map[string]int // packet sockets by interface
	cpu       int
	patience  time.Duration
	marks     uint64
}

func openWires(gateway, wire *netns.Handle, n int, patience time.Duration) (*wires, error) {
	w := &wires{near: map[string]int{}, far: map[string]int{}, patience: patience}
	cpus, err := CPUs()
	if err != nil {
		return nil, err
	}
	w.cpu = cpus[n%len(cpus)]
	err = errors.Join(
		gateway.Do(func() error { return openAll(w.near, etherTypeMark) }),
		wire.Do(func() error { return openAll(w.far, unix.ETH_P_ALL) }))
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPU affinity of this process: %w", err)
	}
	var cpus []int
	for cpu := range 8 * len(set) * 8 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

func openAll(sockets map[string]int, protocol uint16) error {
	for _, dev := range devices {
		fd, err := openPacket(dev, protocol)
		if err != nil {
			return fmt.Errorf("open a packet socket at %s: %w", dev, err)
		}
		sockets[dev] = fd
	}
	return nil
}

// packetIgnoreOutgoing is PACKET_IGNORE_OUTGOING (include/uapi/linux/if_packet.h,
// since Linux 4.20).
const packetIgnoreOutgoing = 23

func openPacket(dev string, protocol uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	if err := bindPacket(fd, dev, protocol); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func bindPacket(fd int, dev string, protocol uint16) error {
	index, err := interfaceIndex(fd, dev)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetIgnoreOutgoing, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		return err
	}
	var order [2]byte
	binary.BigEndian.PutUint16(order[:], protocol)
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(order[:]), Ifindex: index})
}

func interfaceIndex(fd int, dev string) (int, error) {
	request, err := unix.NewIfreq(dev)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}

// pinned runs fn on a thread that stays on the wires' CPU.
func (w *wires) pinned(fn func() error) error {
	return netns.OnThread(func() error {
		var set unix.CPUSet
		set.Set(w.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("stay on CPU %d: %w", w.cpu, err)
		}
		defer runtime.KeepAlive(w)
		return fn()
	})
}

// after gives all that comes out of the wires in consequence of what fn sends.
func (w *wires) after(fn func() error) (out map[string][][]byte, err error) {
	err = w.pinned(func() error {
		if err := fn(); err != nil {
			return err
		}
		out, err = w.settle()
		return err
	})
	return out, err
}

// exchange puts frames on a wire and gives all that comes out of the wires then.
func (w *wires) exchange(dev string, frames [][]byte) (map[string][][]byte, error) {
	return w.after(func() error {
		for _, frame := range frames {
			if err := write(w.far[dev], frame); err != nil {
				return fmt.Errorf("send a frame of %d bytes to %s: %w", len(frame), dev, err)
			}
		}
		return nil
	})
}

// settle lets marks pass in and out at all interfaces, and gives what came out before.
func (w *wires) settle() (map[string][][]byte, error) {
	w.marks++
	mark := binary.BigEndian.AppendUint64(nil, w.marks)
	for _, dev := range devices {
		if err := w.pass(w.far[dev], w.near[dev], gatewayMAC[dev], mark, nil); err != nil {
			return nil, fmt.Errorf("a mark into %s: %w", dev, err)
		}
	}
	out := map[string][][]byte{}
	for _, dev := range devices {
		keep := func(b []byte) { out[dev] = append(out[dev], slices.Clone(b)) }
		if err := w.pass(w.near[dev], w.far[dev], mac(0xff), mark, keep); err != nil {
			return nil, fmt.Errorf("a mark out of %s: %w", dev, err)
		}
	}
	return out, nil
}

// pass sends a mark from one end to the other, and keeps what comes before it.
func (w *wires) pass(from, to int, at frame.MAC, mark []byte, keep func([]byte)) error {
	frame := append(at[:], 0x02, 0, 0, 0, 0, 0)
	frame = append(binary.BigEndian.AppendUint16(frame, etherTypeMark), mark...)
	if err := write(from, frame); err != nil {
		return err
	}
	deadline := time.Now().Add(w.patience)
	buffer := make([]byte, 1<<16)
	for time.Now().Before(deadline) {
		b, err := receiveFrom(to, buffer, time.Until(deadline))
		switch {
		case err != nil:
			return err
		case isMark(b, mark):
			return nil
		case b != nil && keep != nil:
			keep(b)
		}
	}
	return fmt.Errorf("did not come within %v", w.patience)
}

func isMark(b, mark []byte) bool {
	return len(b) >= frame.EthernetLen+len(mark) && binary.BigEndian.Uint16(b[12:]) == etherTypeMark &&
		string(b[frame.EthernetLen:][:len(mark)]) == string(mark)
}

func write(fd int, b []byte) error {
	n, err := unix.Write(fd, b)
	if err == nil && n != len(b) {
		err = fmt.Errorf("only %d of %d bytes", n, len(b))
	}
	return os.NewSyscallError("write", err)
}

// read gives one frame, or nil where none came in time.
func receiveFrom(fd int, buffer []byte, patience time.Duration) ([]byte, error) {
	n, err := unix.Read(fd, buffer)
	if errors.Is(err, unix.EAGAIN) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err = unix.Poll(poll, int(patience.Milliseconds()))
		if err == nil || errors.Is(err, unix.EINTR) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("read", err)
	}
	return buffer[:n], nil
}

// close closes the sockets all at once: for each the kernel waits until nothing reads it
// any more (packet_release, net/packet/af_packet.c), which takes longer than all the rest
// of a world.
func (w *wires) close() {
	var all sync.WaitGroup
	for _, sockets := range []map[string]int{w.near, w.far} {
		for _, fd := range sockets {
			all.Go(func() { unix.Close(fd) })
		}
	}
	all.Wait()
}
