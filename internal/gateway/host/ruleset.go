package host

import (
	"errors"
	"io/fs"
	"maps"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
)

// Foreign are the base chains of a namespace that are not natkit's.
func Foreign(ns *netns.Handle) (all []gateway.Foreign, err error) {
	chains, err := read.BaseChains(ns)
	for _, c := range chains {
		all = append(all, gateway.Foreign(c))
	}
	return all, err
}

// Forwarding adds to the facts of a namespace (nil: this one) the sysctls by which it
// forwards, those of its interfaces too.
func Forwarding(ns *netns.Handle, f *gateway.Facts) error {
	names := []string{gateway.Forward4, gateway.Forward6}
	for _, i := range f.Interfaces {
		names = append(names, gateway.ForwardSysctl(false, i.Name), gateway.ForwardSysctl(true, i.Name))
	}
	read := snapshot.Sysctls{}
	maps.Copy(read, f.Sysctls)
	f.Sysctls = read
	return ns.Do(func() error { return ReadSysctls("/proc", names, f.Sysctls) })
}

// ReadSysctls reads those of the thread's namespace that exist.
func ReadSysctls(proc string, names []string, into snapshot.Sysctls) error {
	for _, name := range names {
		value, err := apply.ReadSysctl(proc, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		into[name] = value
	}
	return nil
}
