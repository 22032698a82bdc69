package lab

import (
	"fmt"
	"math"
	"net/netip"
)

// FillSources are the clients that the mixes of natkit are made of. No node of a
// lab has an address there and no route leads there, so an entry meets no packet,
// neither of the load nor of its own.
var FillSources = netip.MustParsePrefix("198.18.128.0/17")

const (
	// MaxFill is the greatest number of entries that a fill makes: about 1.5 GiB
	// of kernel memory and tens of seconds.
	MaxFill = 4 << 20

	// entryBytes is an entry with its extension, roughly (struct nf_conn 256 and
	// 128 bytes on x86-64).
	entryBytes = 384
)

// FillMark is the mark on the entries of a scenario's fill, by which they are
// told from those of the load ("fill" in ASCII). Other fills have one of the
// numbers that follow.
const FillMark = 0x66696c6c

// Amount is how full a table is to be. Exactly one of its fields is set.
type Amount struct {
	// Entries in all.
	Entries int64 `json:"entries,omitempty"`
	// Share of nf_conntrack_max, from 0 to 1.
	Share float64 `json:"share,omitempty"`
	// Free places below nf_conntrack_max.
	Free int64 `json:"free,omitempty"`
}

// Target is how many entries a table holds then, where limit is nf_conntrack_max
// (0: none).
func (a Amount) Target(limit int64) (int64, error) {
	target := a.Entries
	switch {
	case a.Entries == 0 && limit == 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is 0, without a limit; expected a number of entries")
	case a.Share > 0:
		target = int64(math.Round(a.Share * float64(limit)))
	case a.Free > 0:
		target = limit - a.Free
	}
	switch {
	case target <= 0 && a.Free > 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, which leaves fewer than the %d free places wanted", limit, a.Free)
	case target <= 0:
		return 0, fmt.Errorf("fill the connection table: nf_conntrack_max is %d, of which so small a share is no entry", limit)
	case limit > 0 && target > max(limit, MaxFill): // no advice to raise the limit so far
		return 0, fmt.Errorf("fill the connection table: %d entries do not fit, nf_conntrack_max is %d", target, limit)
	case limit > 0 && target > limit:
		return 0, fmt.Errorf("fill the connection table: %d entries do not fit, nf_conntrack_max is %d; fewer, or raise it: natkit tune apply net.netfilter.nf_conntrack_max=%d", target, limit, target)
	}
	return target, nil
}

// CheckFill refuses more entries than MaxFill, or than take a quarter of
// availableBytes.
func CheckFill(entries, availableBytes int64) error {
	switch {
	case entries > MaxFill:
		return fmt.Errorf("fill the connection table: %d entries, more than %d are not made", entries, MaxFill)
	case entries*entryBytes > availableBytes/4:
		return fmt.Errorf("fill the connection table: %d entries take about %d MiB, more than a quarter of the %d MiB available",
			entries, entries*entryBytes>>20, availableBytes>>20)
	}
	return nil
}

// FillTarget is how many entries a scenario's table must hold so that free places
// are left below limit (nf_conntrack_max). It refuses where CheckFill does.
func FillTarget(limit, free, availableBytes int64) (int64, error) {
	target, err := Amount{Free: free}.Target(limit)
	if err != nil {
		return 0, err
	}
	if err := CheckFill(target, availableBytes); err != nil {
		return 0, fmt.Errorf("%w; use --lower-max 65536", err)
	}
	return target, nil
}
