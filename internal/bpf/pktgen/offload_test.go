package pktgen

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// setGRO switches generic receive offload of an interface (ETHTOOL_SGRO).
func setGRO(t testing.TB, ns *netns.Handle, name string, on bool) {
	t.Helper()
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_SGRO}
	if on {
		value.data = 1
	}
	do(t, ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request := ifreqData{data: unsafe.Pointer(&value)}
		copy(request.name[:], name)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	})
}
