package nft

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// old refuses what a kernel before 5.5 takes and never does: its packets do not know
// in postrouting where they came in (28f8bfd1ac94 "Support iif matches in
// POSTROUTING"), and a hairpin rule would match none.
func old(p *gateway.Plan) error {
	i := slices.IndexFunc(p.Sources, func(s gateway.Source) bool { return s.Hairpin.Prefix.IsValid() })
	if i < 0 {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	if before55(release) {
		return fmt.Errorf("%s: hairpin needs Linux 5.5, this is %s: take `hairpin` out, or let hosts inside use the address inside", p.Sources[i].Rule, release)
	}
	return nil
}

func before55(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < 5 || major == 5 && minor < 5)
}
