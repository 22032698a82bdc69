package natrules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
)

// Options of getsockopt(2), the same for both versions of IP (ip_tables.h).
const (
	optInfo    = 64 // IPT_SO_GET_INFO
	optEntries = 65 // IPT_SO_GET_ENTRIES
	// entriesHeader is where the rules begin in struct ipt_get_entries.
	entriesHeader = 40
	// legacyMax is more than any table has: a rule takes a hundred bytes and more.
	legacyMax = 256 << 20
)

// legacySource is one version's table.
type legacySource struct {
	names  string // below /proc, tells which tables are there
	domain int
	level  int
	layout layout
}

var legacySources = []legacySource{
	{"/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, layoutIP4},
	{"/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layoutIP6},
}

// readLegacy tells the rules of iptables-legacy. To ask for a table that is not
// there would load its module and make it.
func readLegacy(ns *netns.Handle, ways *budget) ([]found, error) {
	tables, err := legacyTables(ns, "nat")
	var all []found
	for _, t := range tables {
		all = append(all, t.rules(ways)...)
	}
	return all, err
}

// legacyTables are the tables of these names, of both versions of IP.
func legacyTables(ns *netns.Handle, names ...string) ([]*ruleTable, error) {
	var all []*ruleTable
	read := func() error {
		for _, s := range legacySources {
			for _, name := range names {
				t, err := s.read(name)
				if err != nil {
					return err
				}
				if t != nil {
					all = append(all, t)
				}
			}
		}
		return nil
	}
	if ns == nil {
		return all, read()
	}
	err := ns.Do(read)
	return all, err
}

// read is one version's table of that name in the calling thread's namespace; nil where
// there is none.
func (s legacySource) read(name string) (*ruleTable, error) {
	names, err := s.tables()
	if err != nil || !slices.Contains(names, name) {
		return nil, err
	}
	info, blob, err := s.ask(name)
	if err != nil {
		return nil, err
	}
	return parseLegacy(s.layout, name, info, blob)
}

// tables are those that there are, in the calling thread's namespace.
func (s legacySource) tables() ([]string, error) {
	names, err := os.ReadFile(s.names)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel has no iptables, or not loaded
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("read %s: %w", s.names, privilege.Denied(err, privilege.ReadAll))
	case err != nil:
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// ask reads a table that is there.
func (s legacySource) ask(table string) (tableInfo, []byte, error) {
	fd, err := unix.Socket(s.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return tableInfo{}, nil, fmt.Errorf("read table %s (%s): open a raw socket: %w", table, s.layout.family, privilege.Denied(err, privilege.NetRaw))
	}
	defer unix.Close(fd)
	info, blob, err := s.table(fd, table)
	if err != nil {
		return info, nil, fmt.Errorf("read table %s (%s): %w", table, s.layout.family, err)
	}
	return info, blob, nil
}

// table asks until the size that the kernel told is the one that it has.
func (s legacySource) table(fd int, name string) (info tableInfo, blob []byte, err error) {
	for range attempts {
		b := make([]byte, infoBytes)
		copy(b[:xtHeader-1], name)
		if err = getsockopt(fd, s.level, optInfo, b); err != nil {
			break
		}
		if info, err = parseInfo(b); err != nil {
			return info, nil, err
		}
		if info.size > legacyMax {
			return info, nil, fmt.Errorf("its rules take %d bytes, more than natkit reads", info.size)
		}
		b = make([]byte, entriesHeader+int(info.size))
		copy(b[:xtHeader-1], name)
		binary.NativeEndian.PutUint32(b[32:], info.size)
		if err = getsockopt(fd, s.level, optEntries, b); !errors.Is(err, unix.EAGAIN) {
			blob = b[entriesHeader:]
			break
		}
	}
	if errors.Is(err, unix.EPERM) {
		err = privilege.Denied(err, privilege.NetAdmin)
	}
	return info, blob, err
}

// getsockopt fills b, which also says what is asked for.
func getsockopt(fd, level, option int, b []byte) error {
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
