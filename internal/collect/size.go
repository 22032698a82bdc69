package collect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	slabinfo = "/proc/slabinfo"
	sysSlab  = "/sys/kernel/slab"
	// preallocated is NF_CT_EXT_PREALLOC (net/netfilter/nf_conntrack_extend.c,
	// Linux 4.19 and newer): the first extension of an entry takes so much, so it
	// is an object of kmalloc-128.
	preallocated = 128
)

var (
	// entrySlab is nf_conntrack, on el6 and 3.10 with a pointer behind, on el7 and
	// 3.18 to 4.8 with a number per namespace; nf_conntrack_expect is another one.
	entrySlab = regexp.MustCompile(`^nf_conntrack(_[0-9a-f]+)?$`)
	// extensionSlab has many copies where CONFIG_RANDOM_KMALLOC_CACHES is on (6.6).
	extensionSlab = regexp.MustCompile(`^kmalloc-(rnd-[0-9]+-)?128$`)
)

// slab is one line of /proc/slabinfo.
type slab struct {
	name string
	// objectBytes is one object, alignment and bookkeeping included.
	objectBytes uint64
	// active objects are in use.
	active uint64
	// pages are held by all slabs of this name.
	pages uint64
}

// parseSlabinfo reads version 2.x of the file (cache_show and slabinfo_show_stats,
// mm/slab_common.c).
func parseSlabinfo(r io.Reader) ([]slab, error) {
	lines := bufio.NewScanner(r)
	var slabs []slab
	for lines.Scan() {
		text := lines.Text()
		if strings.HasPrefix(text, "slabinfo - version:") || strings.HasPrefix(text, "#") || text == "" {
			continue
		}
		front, back, ok := strings.Cut(text, ": slabdata")
		f, d := strings.Fields(front), strings.Fields(back)
		if !ok || len(f) < 6 || len(d) < 2 {
			return nil, fmt.Errorf("parse %s: line %.60q is not of version 2", slabinfo, text)
		}
		size, err1 := strconv.ParseUint(f[3], 10, 32)
		pages, err2 := strconv.ParseUint(f[5], 10, 32)
		count, err3 := strconv.ParseUint(d[1], 10, 32)
		active, err4 := strconv.ParseUint(f[1], 10, 64)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("parse %s, slab %s: %w", slabinfo, f[0], err)
		}
		slabs = append(slabs, slab{name: f[0], objectBytes: size, active: active, pages: pages * count})
	}
	return slabs, lines.Err()
}

// readSize finds out what an entry costs: what the allocator says, or the size of
// the structure rounded as the allocator does.
func readSize(src source, m machine, k snapshot.Kernel) (*snapshot.ConntrackSize, error) {
	size := &snapshot.ConntrackSize{BucketBytes: m.pointerBytes(), ExtensionBytes: preallocated}
	size.ExtensionSource = "NF_CT_EXT_PREALLOC, the same since Linux 4.19"
	if k.Before(4, 19) {
		size.ExtensionSource = "a bound: before Linux 4.19 it depends on the extensions in use"
	}
	slabErr := sizeFromSlabinfo(src, m, size)
	if slabErr == nil && size.EntryBytes > 0 {
		return size, nil
	}
	sysErr := sizeFromSysfs(src, size)
	if sysErr == nil {
		return size, nil
	}
	btfErr := sizeFromBTF(src, m, size)
	if btfErr == nil {
		return size, nil
	}
	return nil, errors.Join(slabErr, sysErr, btfErr)
}

func sizeFromSlabinfo(src source, m machine, size *snapshot.ConntrackSize) error {
	text, err := readText(src, slabinfo)
	if err != nil {
		return err
	}
	slabs, err := parseSlabinfo(strings.NewReader(text))
	if err != nil {
		return err
	}
	for _, s := range slabs {
		switch {
		case entrySlab.MatchString(s.name):
			size.EntryBytes, size.Source = max(size.EntryBytes, s.objectBytes), slabinfo
			size.SlabBytes += s.pages * uint64(m.PageBytes)
			size.ActiveEntries += s.active
		case extensionSlab.MatchString(s.name):
			size.ExtensionBytes = max(size.ExtensionBytes, s.objectBytes)
			size.ExtensionSlabBytes += s.pages * uint64(m.PageBytes)
		}
	}
	return nil
}

func sizeFromSysfs(src source, size *snapshot.ConntrackSize) error {
	names, err := src.list(sysSlab, "nf_conntrack")
	if err != nil {
		return err
	}
	for _, name := range names {
		if !entrySlab.MatchString(name) {
			continue
		}
		path := sysSlab + "/" + name + "/slab_size"
		text, err := readText(src, path)
		if err != nil {
			return err
		}
		if size.EntryBytes, err = strconv.ParseUint(strings.TrimSpace(text), 10, 32); err != nil {
			return fmt.Errorf("parse %s: %w", path, err)
		}
		size.Source = path
		return nil
	}
	return fmt.Errorf("read %s/nf_conntrack: no such slab: connection tracking is not loaded", sysSlab)
}

// sizeFromBTF adds to the structure what SLUB adds: a pointer behind the object,
// as the slab is SLAB_TYPESAFE_BY_RCU, and alignment to cache lines, as it is
// SLAB_HWCACHE_ALIGN since 4.9 (calculate_sizes, mm/slub.c).
func sizeFromBTF(src source, m machine, size *snapshot.ConntrackSize) error {
	bytes, err := src.structSize("nf_conn")
	if err != nil {
		return err
	}
	const cacheLine = 64
	size.EntryBytes = (uint64(bytes) + m.pointerBytes() + cacheLine - 1) / cacheLine * cacheLine
	size.Source = "BTF"
	return nil
}
