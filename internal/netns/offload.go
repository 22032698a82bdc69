//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/natkit/natkit/internal/permit"
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
	if err := permit.ChangeOf("change interface", dev); err != nil {
		return err
	}
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

// ReceiveOn has the stack take what comes in by an interface on these CPUs, instead of on the one that
// the driver receives on (receive packet steering, Documentation/networking/scaling.rst). Programs at
// XDP still run on that one. It requires Linux 5.2 and CAP_SYS_ADMIN.
func (h *Handle) ReceiveOn(dev string, cpus []int) error {
	err := h.Do(func() error {
		dir, err := openQueues(dev)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		for i := 0; ; i++ {
			err := writeAt(dir, fmt.Sprintf("rx-%d/rps_cpus", i), cpuMask(cpus))
			if i > 0 && errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("choose the CPUs of %s: %w", dev, err)
	}
	return nil
}

// openQueues opens the directory of an interface's queues in a sysfs of the calling thread's network
// namespace: the one at /sys shows the interfaces of the namespace in which it was mounted.
func openQueues(dev string) (int, error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, fmt.Errorf("make a sysfs of the namespace: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("mount a sysfs of the namespace: %w", err)
	}
	defer unix.Close(root)
	return unix.Openat(root, "class/net/"+dev+"/queues", unix.O_PATH|unix.O_CLOEXEC, 0)
}

func writeAt(dir int, name, text string) error {
	if err := permit.ChangeOf("write", name); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(text))
	return errors.Join(err, unix.Close(fd))
}

// cpuMask is a set of CPUs as bitmap_parse reads it: groups of 32 bits in hexadecimal digits, the
// highest first.
func cpuMask(cpus []int) string {
	groups := make([]string, 1+slices.Max(append(cpus, 0))/32)
	for i := range groups {
		bits := uint32(0)
		for _, cpu := range cpus {
			if cpu/32 == i {
				bits |= 1 << (cpu % 32)
			}
		}
		groups[len(groups)-1-i] = fmt.Sprintf("%08x", bits)
	}
	return strings.Join(groups, ",")
}
