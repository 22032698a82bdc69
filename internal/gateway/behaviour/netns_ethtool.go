package behaviour

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// ethtoolValue is struct ethtool_value, ifreqData the part of struct ifreq that
// SIOCETHTOOL reads (include/uapi/linux/ethtool.h, if.h).
type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// checksumsOn has an interface complete the checksums of what the gateway itself
// sends: a veth leaves them open otherwise, as no wire can garble them.
func checksumsOn(ns *netns.Handle, dev string) error {
	if err := ethtool(ns, dev, ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}); err != nil {
		return fmt.Errorf("turn off TX checksum offload: %w", err)
	}
	return nil
}

// poll has an end of a veth pair receive by polling, which takes frames that an XDP
// program redirects to the other one: as GRO does (veth_xdp_xmit and
// veth_set_xdp_features, drivers/net/veth.c).
func poll(ns *netns.Handle, dev string) error {
	if err := ethtool(ns, dev, ethtoolValue{cmd: unix.ETHTOOL_SGRO, data: 1}); err != nil {
		return fmt.Errorf("turn on GRO: %w", err)
	}
	return nil
}

func ethtool(ns *netns.Handle, dev string, value ethtoolValue) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request := ifreqData{data: unsafe.Pointer(&value)}
		copy(request.name[:], dev)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	})
}
