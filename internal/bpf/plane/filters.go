package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
)

// Filter is a classifier at tc that is not natkit's: what the programs forward passes by it, or comes to it later.
type Filter struct {
	Interface, Way string
	// Kind is tc's word for it; "bpf" has the name of its program behind it.
	Kind string
}

// ReadFilters lists the foreign classifiers at tc of the network namespace that the thread is in. Several of one kind at one hook
// are listed once.
func ReadFilters() ([]Filter, error) {
	links, err := socket.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var all []Filter
	for _, l := range links {
		for _, name := range []string{hookIn, hookOut} {
			kinds, err := foreignAt(l, name)
			if err != nil {
				return nil, fmt.Errorf("list the filters at tc of %s: %w", l.Attrs().Name, netns.Denied(err, netns.SysAdmin))
			}
			slices.Sort(kinds)
			for _, kind := range slices.Compact(kinds) {
				all = append(all, Filter{l.Attrs().Name, ways[name], kind})
			}
		}
	}
	return all, nil
}

var ways = map[string]string{hookIn: "ingress", hookOut: "egress"}

// foreignAt lists the kinds of foreign classifiers at one hook of an interface.
func foreignAt(l netlink.Link, name string) (kinds []string, err error) {
	filters, _ := netlink.FilterList(l, filterParent(name)) // without the qdisc there are none
	for _, f := range filters {
		if b, is := f.(*netlink.BpfFilter); !is {
			kinds = append(kinds, f.Type())
		} else if !isOwn(b) {
			kinds = append(kinds, strings.TrimSpace("bpf "+b.Name))
		}
	}
	programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: attachTypes[name]})
	if err != nil {
		return kinds, nil // before Linux 6.6 there are none of them
	}
	for _, at := range programs.Programs {
		program, own, err := nameOf(at.ID)
		if errors.Is(err, fs.ErrPermission) {
			continue // opening another's program requires CAP_SYS_ADMIN, which a service lacks
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil && !own {
			kinds = append(kinds, strings.TrimSpace("bpf "+program))
		}
	}
	return kinds, nil
}

// nameOf returns the name of a program, and whether it is natkit's: programs of every version have the map works.
func nameOf(id ebpf.ProgramID) (name string, own bool, err error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", false, err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", false, err
	}
	maps, _ := info.MapIDs()
	return info.Name, slices.ContainsFunc(maps, isWorks), nil
}

func isWorks(id ebpf.MapID) bool {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false
	}
	defer m.Close()
	info, err := m.Info()
	return err == nil && info.Name == planeMapWorks
}
