package profile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/privilege"
)

// openEvent makes an event that runs the program at hz on a CPU; it does not run
// before it is enabled. Closing it ends it.
func openEvent(cpu, hz, program int) (int, error) {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(hz),
		Bits:   unix.PerfBitFreq | unix.PerfBitDisabled,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("sample processor %d at %d Hz: %w", cpu, hz, explainOpen(err))
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach the eBPF program that samples stacks to processor %d: %w", cpu, err)
	}
	return fd, nil
}

// explainOpen adds what to do about a refusal (man perf_event_open, ERRORS).
func explainOpen(err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return privilege.Denied(fmt.Errorf("%w: the sysctl kernel.perf_event_paranoid is %s", err, readSysctl("kernel/perf_event_paranoid")), privilege.PerfMon)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the sysctl kernel.perf_event_max_sample_rate allows %s", err, readSysctl("kernel/perf_event_max_sample_rate"))
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: it went offline", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: needs CONFIG_PERF_EVENTS", err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: raise the limit of open files (ulimit -n)", err)
	}
	return err
}

func readSysctl(name string) string {
	text, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "not readable"
	}
	return strings.TrimSpace(string(text))
}

func enable(events []int) error {
	for _, fd := range events {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return fmt.Errorf("begin to sample: %w", err)
		}
	}
	return nil
}

func disable(events []int) error {
	for _, fd := range events {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
			return fmt.Errorf("end to sample: %w", err)
		}
	}
	return nil
}

func closeEvents(events []int) {
	for _, fd := range events {
		unix.Close(fd)
	}
}

func kernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	release, _, _ := bytes.Cut(u.Release[:], []byte{0})
	return string(release), nil
}
