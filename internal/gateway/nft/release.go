package nft

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// old refuses what this kernel takes and never does.
func old(p *gateway.Plan) error {
	i := slices.IndexFunc(p.Sources, func(s gateway.Source) bool { return s.Hairpin.Prefix.IsValid() })
	if i < 0 {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	if why := gateway.NoHairpin(snapshot.Kernel{Release: unix.ByteSliceToString(u.Release[:])}); why != "" {
		return fmt.Errorf("%s: %s", p.Sources[i].Rule, why)
	}
	return nil
}
