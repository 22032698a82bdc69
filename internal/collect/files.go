package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
)

// readText reads a file as text.
func readText(src source, path string) (string, error) {
	data, whole, err := src.readStart(path, snapshot.MemberMax, time.Minute)
	if err == nil && !whole {
		err = fmt.Errorf("read %s: %d bytes, more than expected", path, len(data))
	}
	if err != nil {
		return "", err
	}
	return string(data), nil
}

// readWord refuses what is longer than the kernel's own could be: a bundle is another's.
func readWord(src source, path string, most int) (string, error) {
	text, err := readText(src, path)
	text = strings.TrimSpace(text)
	if len(text) > most {
		return "", fmt.Errorf("read %s: it has %d bytes, at most %d are possible", path, len(text), most)
	}
	return text, err
}

func readMemory(src source) (*snapshot.Memory, error) {
	text, err := readText(src, "/proc/meminfo")
	if err != nil {
		return nil, err
	}
	return parseMemory(strings.NewReader(text))
}

// AvailableMemory returns how many bytes of this machine's memory programs can have before
// it swaps.
func AvailableMemory() (int64, error) {
	memory, err := readMemory(newLive(Options{}))
	if err != nil {
		return 0, fmt.Errorf("read the memory available: %w", err)
	}
	return int64(memory.AvailableBytes), nil
}

// AvailableFiles returns how many files the whole machine may open besides those that are open
// (fs.file-max; get_max_files, fs/file_table.c).
func AvailableFiles() (int64, error) {
	src := newLive(Options{})
	text, err := readText(src, "/proc/sys/fs/file-nr")
	if err != nil {
		return 0, fmt.Errorf("read the open files: %w", err)
	}
	var open, unused, limit int64
	if _, err := fmt.Sscan(text, &open, &unused, &limit); err != nil {
		return 0, fmt.Errorf("parse /proc/sys/fs/file-nr %q: %w", strings.TrimSpace(text), err)
	}
	return limit - open, nil
}

// parseMemory reads /proc/meminfo by name.
func parseMemory(r io.Reader) (*snapshot.Memory, error) {
	kib := map[string]uint64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, err := strconv.ParseUint(number, 10, 54)
		if ok && err == nil {
			kib[name] = n
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse /proc/meminfo: %w", err)
	}
	if kib["MemTotal"] == 0 {
		return nil, errors.New("parse /proc/meminfo: no MemTotal in it")
	}
	return &snapshot.Memory{TotalBytes: kib["MemTotal"] << 10, AvailableBytes: kib["MemAvailable"] << 10}, nil
}

const sysctlRoot = "/proc/sys/"

// otherSysctls are read beside all of net.netfilter.nf_conntrack_*.
var otherSysctls = []string{
	"net.ipv4.ip_forward",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	snapshot.IPVSConntrack,
	snapshot.TCPTimestamps,
	snapshot.TCPTWReuse,
	snapshot.TCPTWRecycle,
	snapshot.TCPMaxTWBuckets,
	snapshot.TCPRFC1337,
	"net.ipv4.tcp_fin_timeout",
	snapshot.SynCookies,
	snapshot.SoMaxConn,
	snapshot.MaxBacklog,
	snapshot.FragmentsMax,
	snapshot.FragmentsTime,
	"net.core.rmem_max",
	snapshot.ARPMax,
	snapshot.NDiscMax,
	"net.ipv4.tcp_max_syn_backlog",
	"net.ipv4.tcp_mem",
	"fs.nr_open",
	"fs.file-max",
	"net.ipv6.conf.all.forwarding",
	snapshot.BridgeCalls4,
	snapshot.BridgeCalls6,
}

// readSysctls reads what there is; a sysctl that this kernel or namespace does
// not have is absent. The error is that of the first one that is there and cannot
// be read, or that connection tracking has none at all: a kernel may keep them from a user
// namespace, and a container's /proc may lack them, though it is loaded.
func readSysctls(src source, loaded bool) (snapshot.Sysctls, error) {
	const dir = sysctlRoot + "net/netfilter"
	names, err := src.list(dir, "nf_conntrack_")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		why := snapshot.NotLoaded
		if loaded {
			why = "connection tracking is loaded, so they are hidden from this process"
		}
		err = errors.New("read net.netfilter.nf_conntrack_*: there are none: " + why)
	}
	sysctls := snapshot.Sysctls{}
	for _, name := range names {
		err = firstError(err, readSysctl(src, sysctls, "net.netfilter."+name))
	}
	err = firstError(err, readIPVSSysctls(src, sysctls))
	for _, name := range otherSysctls {
		if _, known := sysctls[name]; known {
			continue
		}
		if why := readSysctl(src, sysctls, name); !errors.As(why, new(errNotRecorded)) { // a bundle of an older natkit
			err = firstError(err, why)
		}
	}
	return sysctls, err
}

func firstError(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// sysctlPath swaps the separators: in a name '/' stands for a dot within a part.
var sysctlPath = strings.NewReplacer(".", "/", "/", ".")

// ReadSysctls reads the sysctls of these names, in which one * stands for any part, and
// what their defaults depend on, with the parts that are named. What there is and cannot be read is a Part with an error.
func ReadSysctls(o Options, names []string, parts ...string) (*snapshot.Snapshot, error) {
	src := newLive(o)
	r := newObservation(src)
	r.Sysctls = snapshot.Sysctls{}
	r.collect(context.Background(), only(append(parts, "kernel", "memory")...))
	err := src.inside(func() error {
		for _, pattern := range names {
			for _, name := range expandSysctl(src, pattern) {
				r.part(name, func() error { return readSysctl(src, r.Sysctls, name) })
			}
		}
		return nil
	})
	return r.Snapshot, err
}

func expandSysctl(src source, pattern string) (names []string) {
	before, after, many := strings.Cut(pattern, "*")
	if !many {
		return []string{pattern}
	}
	parts, _ := src.list(sysctlRoot+sysctlPath.Replace(before), "")
	for _, part := range parts {
		names = append(names, before+strings.ReplaceAll(part, ".", "/")+after)
	}
	return names
}

func readSysctl(src source, into snapshot.Sysctls, name string) error {
	text, err := readText(src, sysctlRoot+sysctlPath.Replace(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	into[name] = strings.Join(strings.Fields(text), " ")
	return nil
}

// readKernel never fails as a whole: the release decides what the rest means.
func readKernel(src source, m machine) (snapshot.Kernel, error) {
	k := snapshot.Kernel{Arch: m.Arch}
	var err, bootErr error
	k.Release, err = readWord(src, sysctlRoot+"kernel/osrelease", 64) // __NEW_UTS_LEN
	k.BootID, bootErr = readWord(src, sysctlRoot+"kernel/random/boot_id", 36)
	online, cpuErr := readText(src, "/sys/devices/system/cpu/online")
	if cpuErr == nil {
		k.CPUs, cpuErr = parseCPUList(online)
	}
	return k, errors.Join(err, bootErr, cpuErr)
}

// parseCPUList counts the CPUs in a list such as 0-3,8
// (Documentation/admin-guide/cputopology.rst).
func parseCPUList(text string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err := errors.Join(err1, err2); err != nil || b < a {
			return 0, fmt.Errorf("parse the list of CPUs %.60q: not like 0-3,8", text)
		}
		n += int(b-a) + 1
	}
	return n, nil
}

const (
	slabinfo = "/proc/slabinfo"
	// preallocated is NF_CT_EXT_PREALLOC (net/netfilter/nf_conntrack_extend.c,
	// Linux 4.19 and newer): the first extension of an entry takes so much, so it
	// is an object of kmalloc-128.
	preallocated = 128
)

var (
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

// ReadSlabs returns how many bytes the kernel's slab caches hold, by their names. What a cache holds is of all
// network namespaces. Needs root.
func ReadSlabs() (map[string]int64, error) {
	src := newLive(Options{})
	text, err := readText(src, slabinfo)
	if err != nil {
		return nil, err
	}
	slabs, err := parseSlabinfo(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	bytes := map[string]int64{}
	for _, s := range slabs {
		bytes[s.name] += int64(s.pages) * int64(os.Getpagesize())
	}
	return bytes, nil
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
func readSize(src source, m machine) (*snapshot.ConntrackSize, error) {
	size := &snapshot.ConntrackSize{BucketBytes: pointerBytes, ExtensionBytes: preallocated,
		ExtensionSource: "NF_CT_EXT_PREALLOC, the same since Linux 4.19"}
	slabErr := sizeFromSlabinfo(src, m, size)
	if slabErr == nil && size.EntryBytes > 0 {
		return size, nil
	}
	btfErr := sizeFromBTF(src, size)
	if btfErr == nil {
		return size, nil
	}
	return nil, errors.Join(slabErr, btfErr)
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
		case s.name == "nf_conntrack":
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

// sizeFromBTF adds to the structure what SLUB adds: a pointer behind the object,
// as the slab is SLAB_TYPESAFE_BY_RCU, and alignment to cache lines, as it is
// SLAB_HWCACHE_ALIGN since 4.9 (calculate_sizes, mm/slub.c).
func sizeFromBTF(src source, size *snapshot.ConntrackSize) error {
	bytes, err := src.structSize("nf_conn")
	if err != nil {
		return err
	}
	const cacheLine = 64
	size.EntryBytes = (uint64(bytes) + pointerBytes + cacheLine - 1) / cacheLine * cacheLine
	size.Source = "BTF"
	return nil
}
