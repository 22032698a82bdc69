package netns

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value, ifreqData the part of struct ifreq that
// SIOCETHTOOL reads (include/uapi/linux/ethtool.h, if.h).
type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// CompleteChecksums has an interface complete the checksums of what is sent by it: a veth
// leaves them open otherwise, as no wire can garble them.
// Segmentation (TSO) needs them open, so that packets of the MTU are sent (netdev_fix_features, net/core/dev.c).
func (h *Handle) CompleteChecksums(dev string) error {
	if err := h.ethtool(dev, &ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}); err != nil {
		return fmt.Errorf("turn off TX checksum offload of %s: %w", dev, err)
	}
	return nil
}

// LeaveChecksums undoes CompleteChecksums.
func (h *Handle) LeaveChecksums(dev string) error {
	if err := h.ethtool(dev, &ethtoolValue{cmd: unix.ETHTOOL_STXCSUM, data: 1}); err != nil {
		return fmt.Errorf("turn on TX checksum offload of %s: %w", dev, err)
	}
	return nil
}

// SetGRO turns generic receive offload of an interface on or off. An end of a veth pair with GRO
// receives by polling, which takes frames that an XDP program redirects to the other end
// (veth_xdp_xmit and veth_set_xdp_features, drivers/net/veth.c).
func (h *Handle) SetGRO(dev string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_SGRO}
	if on {
		value.data = 1
	}
	if err := h.ethtool(dev, &value); err != nil {
		return fmt.Errorf("set GRO of %s: %w", dev, err)
	}
	return nil
}

func (h *Handle) ethtool(dev string, value *ethtoolValue) error {
	return h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request := ifreqData{data: unsafe.Pointer(value)}
		copy(request.name[:], dev)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	})
}
