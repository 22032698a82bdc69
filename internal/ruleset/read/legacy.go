package read

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// Options of getsockopt(2), the same for both versions of IP (ip_tables.h).
const (
	optInfo    = 64 // IPT_SO_GET_INFO
	optEntries = 65 // IPT_SO_GET_ENTRIES
	tableName  = 32 // bytes of a table's name
	// entriesHeader is where the rules begin in struct ipt_get_entries.
	entriesHeader = 40
	// legacyMax is more than any table has: a rule takes a hundred bytes and more.
	legacyMax = 256 << 20
)

// legacySource is one version's tables.
type legacySource struct {
	names  string // below /proc, lists the tables that there are
	domain int
	level  int
	layout *ruleset.Layout
}

var legacySources = []legacySource{
	{"/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, &ruleset.LayoutIP4},
	{"/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, &ruleset.LayoutIP6},
}

// legacyTables are the tables of iptables-legacy of these names, or all, of both versions
// of IP. Asking for a table that is not there would load its module and create it.
func legacyTables(ns *netns.Handle, names ...string) (all []*ruleset.Table, err error) {
	err = ns.Do(func() error {
		for _, s := range legacySources {
			there, err := s.tables()
			if err != nil {
				return err
			}
			if len(names) > 0 { // in their order
				there = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(there, name) })
			}
			for _, name := range there {
				info, blob, err := s.ask(name)
				if err != nil {
					return fmt.Errorf("read table %s (%s): %w", name, s.layout.Family, err)
				}
				t, err := ruleset.ParseLegacy(s.layout, name, info, blob)
				if err != nil {
					return err
				}
				all = append(all, t)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("iptables-legacy: %w", err)
	}
	return all, nil
}

// tables are those that there are, in the calling thread's namespace.
func (s legacySource) tables() ([]string, error) {
	names, err := os.ReadFile(s.names)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel has no iptables, or not loaded
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("read %s: %w", s.names, netns.Denied(err, netns.ReadAll))
	case err != nil:
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// ask reads a table that is there.
func (s legacySource) ask(table string) (info ruleset.LegacyInfo, blob []byte, err error) {
	fd, err := unix.Socket(s.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return info, nil, fmt.Errorf("open a raw socket: %w", netns.Denied(err, netns.NetRaw))
	}
	defer unix.Close(fd)
	for range Attempts { // until the size is the one that it has
		if info, err = s.info(fd, table); err != nil {
			break
		}
		if info.Size > legacyMax {
			return info, nil, fmt.Errorf("its rules take %d bytes, more than natkit reads", info.Size)
		}
		b := make([]byte, entriesHeader+int(info.Size))
		copy(b[:tableName-1], table)
		binary.NativeEndian.PutUint32(b[tableName:], info.Size)
		if err = getsockopt(fd, s.level, optEntries, b); !errors.Is(err, unix.EAGAIN) {
			blob = b[entriesHeader:]
			break
		}
	}
	if errors.Is(err, unix.EPERM) {
		err = netns.Denied(err, netns.NetAdmin)
	}
	return info, blob, err
}

func (s legacySource) info(fd int, table string) (ruleset.LegacyInfo, error) {
	b := make([]byte, ruleset.LegacyInfoSize)
	copy(b[:tableName-1], table)
	if err := getsockopt(fd, s.level, optInfo, b); err != nil {
		return ruleset.LegacyInfo{}, err
	}
	return ruleset.ParseLegacyInfo(b)
}

// getsockopt fills b, which also holds the request.
func getsockopt(fd, level, option int, b []byte) error {
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
