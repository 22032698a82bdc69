package plane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// CheckPrivilege returns an error that names the capabilities that are missing to load and attach the programs. Without
// CAP_PERFMON the verifier refuses that a place on the stack has a pointer and then something else, as compilers use it.
func CheckPrivilege() error {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.BPF, Why: "to load eBPF programs"},
		netns.Need{Any: netns.NetAdmin, Why: "to load those of the network"},
		netns.Need{Any: netns.PerfMon, Why: "for what the verifier allows compilers"}); err != nil {
		return fmt.Errorf("load the engine's programs: %w", err)
	}
	return nil
}

// oldest is the first kernel that takes the programs, of those they are tested on. Pointers as arguments of their functions
// came with Linux 5.12: e5069b9c23b3 "bpf: Support pointers in global func args", and the MTU of a route with
// e1850ea9bd9e "bpf: bpf_fib_lookup return MTU value as output when looked up".
const oldest = "5.15"

// refused is why the kernel does not take programs or maps, in a line: what the verifier says is for those who change the
// programs, by errors.As.
func (c *Config) refused(err error) error {
	entries := lenOf(c.Destinations) + lenOf(c.Sources) + int(c.Rules)
	switch v := (*ebpf.VerifierError)(nil); {
	case errors.As(err, &v):
		return &silent{fmt.Sprintf("load the engine's programs: the verifier of Linux %s refuses them (%v); they require Linux %s or later", release(), v.Cause, oldest), err}
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("load the engine's programs: %w; they require Linux %s or later, this is %s", err, oldest, release())
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("make the engine's maps, for %d mappings and counters: %w; the host or the control group lacks memory for them: use fewer rules, or leave them to netfilter", entries, err)
	}
	return fmt.Errorf("load the engine's programs: %w", netns.Denied(err, netns.BPF, netns.NetAdmin))
}

// silent is an error with a text of its own.
type silent struct {
	text  string
	cause error
}

func (s *silent) Error() string { return s.text }
func (s *silent) Unwrap() error { return s.cause }

// release is the running kernel's version, such as 6.1.0-56-cloud-amd64.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}
