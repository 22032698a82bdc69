//go:build linux

package collect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// mostQueuesAsked bounds the queues of which classes and filters are read.
const mostQueuesAsked = 64

func askLinks() (*snapshot.Links, error) {
	links, err := socket.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	l := &snapshot.Links{All: []snapshot.Link{}, TooMany: len(links) > mostLinks}
	names := map[int]netlink.Link{}
	for _, link := range links[:min(len(links), mostLinks)] {
		names[link.Attrs().Index] = link
		l.All = append(l.All, linkOf(link.Attrs()))
	}
	qdiscs, err := socket.Whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	switch {
	case errors.Is(err, unix.EOPNOTSUPP): // a kernel without CONFIG_NET_SCHED
		return l, nil
	case err != nil:
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	asked := 0
	for _, d := range qdiscs {
		a := d.Attrs()
		link := names[a.LinkIndex]
		if link == nil || d.Type() == "noqueue" || a.Statistics == nil {
			continue
		}
		if len(l.Queues) >= mostQueuesRead {
			l.TooMany = true
			break
		}
		q := queueOf(link, d.Type(), a.Handle, (*netlink.ClassStatistics)(a.Statistics))
		if (q.Dropped > 0 || q.Waiting > 0) && asked < mostQueuesAsked {
			asked++
			q.Filters = filtersOf(link, &q, a.Handle)
			l.Queues = append(l.Queues, classesOf(link, a.Handle)...)
		}
		l.Queues = append(l.Queues, q)
	}
	return l, nil
}

func linkOf(a *netlink.LinkAttrs) snapshot.Link {
	l := snapshot.Link{Name: a.Name, MTU: a.MTU}
	if s := a.Statistics; s != nil {
		l.RXPackets, l.RXDropped, l.RXErrors, l.RXMissed = s.RxPackets, s.RxDropped, s.RxErrors, s.RxMissedErrors
		l.TXPackets, l.TXDropped, l.TXErrors = s.TxPackets, s.TxDropped, s.TxErrors
	}
	if a.Xdp != nil && a.Xdp.Attached {
		l.XDPProgram = a.Xdp.ProgId
	}
	return l
}

func queueOf(link netlink.Link, kind string, handle uint32, s *netlink.ClassStatistics) snapshot.Queue {
	q := snapshot.Queue{Interface: link.Attrs().Name, Kind: kind, Handle: netlink.HandleStr(handle)}
	if major, minor := netlink.MajorMinor(handle); minor == 0 {
		q.Handle = fmt.Sprintf("%x:", major)
	}
	if s.Basic != nil {
		q.Packets, q.Bytes = uint64(s.Basic.Packets), s.Basic.Bytes
	}
	if s.Queue != nil {
		q.Dropped, q.Overlimits, q.Waiting = uint64(s.Queue.Drops), uint64(s.Queue.Overlimits), uint64(s.Queue.Backlog)
	}
	return q
}

// classesOf returns the classes of a discipline; none where it has none.
func classesOf(link netlink.Link, parent uint32) (all []snapshot.Queue) {
	classes, _ := netlink.ClassList(link, parent)
	for _, c := range classes[:min(len(classes), mostQueuesRead)] {
		if s := c.Attrs().Statistics; s != nil {
			q := queueOf(link, c.Type(), c.Attrs().Handle, s)
			q.Class = true
			all = append(all, q)
		}
	}
	return all
}

// filtersOf returns the filters of a discipline that may drop.
func filtersOf(link netlink.Link, q *snapshot.Queue, handle uint32) (all []snapshot.QueueFilter) {
	parents := map[string]uint32{"": handle}
	if q.Kind == "clsact" {
		parents = map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS}
	}
	for _, where := range []string{"", "ingress", "egress"} {
		parent, there := parents[where]
		if !there {
			continue
		}
		filters, _ := netlink.FilterList(link, parent)
		for _, f := range filters[:min(len(filters), mostQueuesRead)] {
			if one, drops := filterOf(f); drops {
				one.Text = strings.TrimSpace(where + " " + one.Text)
				all = append(all, one)
			}
		}
	}
	return all[:min(len(all), mostQueues)]
}

// filterOf returns a filter; false where it never drops.
func filterOf(f netlink.Filter) (q snapshot.QueueFilter, drops bool) {
	var actions []netlink.Action
	var words []string
	switch f := f.(type) {
	case *netlink.U32:
		actions, q.Known = f.Actions, true
		if f.Police != nil {
			actions = append(slices.Clone(actions), f.Police)
		}
		if f.Sel != nil {
			words, q.Known = u32Words(&q, f.Sel)
		}
	case *netlink.Flower:
		actions, q.Known = f.Actions, f.SrcMac == nil && f.DestMac == nil && f.VlanId == 0 && f.EncKeyId == 0 && f.SrcPortRangeMin == 0 && f.DstPortRangeMin == 0
		words = flowerWords(&q, f)
	case *netlink.MatchAll:
		actions, q.Known = f.Actions, true
	case *netlink.BpfFilter:
		q.Text = "bpf " + cmp.Or(f.Name, f.Tag)
		if f.DirectAction {
			q.Text += " direct-action"
		}
		drops = f.DirectAction
	}
	action := ""
	for _, a := range actions {
		if does, is := dropsBy(a); is {
			drops, action = true, " action "+does
			if s := a.Attrs().Statistics; s != nil && s.Queue != nil {
				q.Dropped, q.Counted = uint64(s.Queue.Drops), true
			}
		}
	}
	if q.Text == "" {
		q.Text = strings.Join(append([]string{f.Type()}, words...), " ")
	}
	q.Text = strings.TrimSpace(q.Text) + fmt.Sprintf(" (pref %d)", f.Attrs().Priority) + action
	return q, drops
}

// dropsBy returns what an action does, and whether it may drop.
func dropsBy(a netlink.Action) (does string, drops bool) {
	switch a := a.(type) {
	case *netlink.GenericAction:
		return "drop", a.Action == netlink.TC_ACT_SHOT
	case *netlink.PoliceAction:
		return fmt.Sprintf("police rate %d bit/s drop", uint64(a.Rate)*8), a.ExceedAction == netlink.TC_POLICE_SHOT
	case *netlink.BpfAction:
		return "bpf " + a.Name, true
	}
	return "", false
}

// Offsets in the IPv4 header of the keys that tc makes of "match ip …" (f_u32.c).
const (
	u32Protocol    = 8
	u32Source      = 12
	u32Destination = 16
	u32Ports       = 20
)

// u32Words reads keys for IPv4; false where one of them is another.
func u32Words(q *snapshot.QueueFilter, sel *nl.TcU32Sel) (words []string, known bool) {
	known = true
	for _, k := range sel.Keys {
		word := fmt.Sprintf("match %08x/%08x at %d", k.Val, k.Mask, k.Off)
		switch {
		case k.Mask == 0:
			word = ""
		case k.OffMask == 0 && k.Off == u32Protocol && k.Mask == 0xff0000:
			q.Protocol = nat.ProtocolName(uint8(k.Val >> 16))
			word = "match ip protocol " + q.Protocol
		case k.OffMask == 0 && k.Off == u32Source:
			q.From = prefixOf(k.Val, k.Mask)
			word = "match ip src " + q.From.String()
		case k.OffMask == 0 && k.Off == u32Destination:
			q.To = prefixOf(k.Val, k.Mask)
			word = "match ip dst " + q.To.String()
		case k.Off == u32Ports && k.Mask == 0xffff || k.OffMask != 0 && k.Off == 0 && k.Mask == 0xffff:
			q.DestinationPort = uint16(k.Val)
			word = fmt.Sprintf("match ip dport %d", q.DestinationPort)
		case k.Off == u32Ports && k.Mask == 0xffff0000:
			q.SourcePort = uint16(k.Val >> 16)
			word = fmt.Sprintf("match ip sport %d", q.SourcePort)
		default:
			known = false
		}
		if word != "" {
			words = append(words, word)
		}
	}
	return words, known
}

func prefixOf(value, mask uint32) netip.Prefix {
	ones, _ := net.IPv4Mask(byte(mask>>24), byte(mask>>16), byte(mask>>8), byte(mask)).Size()
	address := netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)})
	return netip.PrefixFrom(address, ones)
}

func flowerWords(q *snapshot.QueueFilter, f *netlink.Flower) (words []string) {
	if f.IPProto != nil {
		q.Protocol = nat.ProtocolName(uint8(*f.IPProto))
		words = append(words, "ip_proto "+q.Protocol)
	}
	for _, side := range []struct {
		name string
		ip   net.IP
		mask net.IPMask
		port uint16
		to   *netip.Prefix
	}{{"src", f.SrcIP, f.SrcIPMask, f.SrcPort, &q.From}, {"dst", f.DestIP, f.DestIPMask, f.DestPort, &q.To}} {
		if address, ok := netip.AddrFromSlice(side.ip); ok {
			ones, bits := side.mask.Size()
			if bits == 0 {
				ones = address.BitLen()
			}
			*side.to = netip.PrefixFrom(address, ones)
			words = append(words, side.name+"_ip "+side.to.String())
		}
		if side.port != 0 {
			words = append(words, fmt.Sprintf("%s_port %d", side.name, side.port))
		}
	}
	q.SourcePort, q.DestinationPort = f.SrcPort, f.DestPort
	return words
}

func askIPsecPolicies() (*[]snapshot.IPsecPolicy, error) {
	all, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
	policies := []snapshot.IPsecPolicy{}
	for _, p := range all[:min(len(all), mostListed)] {
		policies = append(policies, policyOf(&p))
	}
	return &policies, err
}

func policyOf(p *netlink.XfrmPolicy) snapshot.IPsecPolicy {
	text := fmt.Sprintf("src %v dst %v", p.Src, p.Dst)
	if p.Proto != 0 {
		text += " proto " + nat.ProtocolName(uint8(p.Proto))
	}
	if p.SrcPort != 0 {
		text += fmt.Sprintf(" sport %d", p.SrcPort)
	}
	if p.DstPort != 0 {
		text += fmt.Sprintf(" dport %d", p.DstPort)
	}
	text += fmt.Sprintf(" dir %v action %v priority %d", p.Dir, p.Action, p.Priority)
	for _, t := range p.Tmpls {
		text += fmt.Sprintf(" tmpl %v %v -> %v", t.Mode, t.Src, t.Dst)
	}
	return snapshot.IPsecPolicy{Text: text, Blocks: p.Action == netlink.XFRM_POLICY_BLOCK}
}
