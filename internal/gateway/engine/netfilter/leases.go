package netfilter

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"golang.org/x/sys/unix"
)

// leasesName is the map of the ports that hosts inside have opened: from address, protocol and port outside to address
// and port inside. seenAsName leads each to the address outside, under which hosts inside that ask for it are seen. Their
// elements end by themselves, so that no port stays open once nobody answers requests any more.
const leasesName, seenAsName = "leases4", "leases4-hairpin"

// PCPComment is that of the rules that look up leases.
const PCPComment = "pcp"

// leases lead what comes for a port that a host inside has opened to it, behind all destinations of the file.
func (t *table) leases(p *gateway.Plan) {
	if p.PCP == nil {
		return
	}
	kinds := [...]struct {
		chain         string
		address, port field
		gives         expr.NAT
	}{
		{"prerouting", destinationAddress, destinationPort, expr.NAT{Type: expr.NATTypeDestNAT, RegProtoMin: word00 + 1}},
		{hairpinChain, originalAddress, originalPort, expr.NAT{Type: expr.NATTypeSourceNAT}},
	}
	for i, s := range newLeases(p.Leases, time.Now()) {
		t.add(s)
		k := kinds[i]
		k.gives.Family, k.gives.RegAddrMin = uint32(ip4.proto), reg1
		key := []expression{part{field: k.address}.loadAll(ip4, word00), part{field: protocol}.loadAll(ip4, word00+1), part{field: k.port}.loadAll(ip4, word00+2)}
		t.rules = append(t.rules, rule{chain: k.chain, comment: PCPComment, exprs: slices.Concat(ip4.is(), key, []expression{s.translate(reg1), &k.gives})})
	}
}

// newLeases are the maps leasesName and seenAsName, with the leases that have not expired.
func newLeases(leases []gateway.Lease, now time.Time) [2]*set {
	key := concat(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	to := &set{name: leasesName, key: key, data: concat(nftables.TypeIPAddr, nftables.TypeInetService), flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, about: PCPComment}
	as := &set{name: seenAsName, key: key, data: nftables.TypeIPAddr, flags: to.flags, about: PCPComment}
	for _, l := range leases {
		left := l.Expires.Sub(now).Truncate(time.Millisecond)
		if left <= 0 || !l.External.Addr().Is4() || !l.Internal.Addr().Is4() {
			continue
		}
		key := appendPadded(appendPadded(l.External.Addr().AsSlice(), []byte{l.Protocol}), portBytes(l.External.Port()))
		inside := target{first: l.Internal.Addr(), firstPort: l.Internal.Port()}
		to.elements = append(to.elements, element{key: key, data: inside.data(to, true), timeout: left})
		as.elements = append(as.elements, element{key: key, data: l.External.Addr().AsSlice(), timeout: left})
	}
	return [2]*set{to, as}
}

// Lend replaces the leases of a plan in force, by a transaction of elements alone. Connections that exist stay.
func (Engine) Lend(ns *netns.Handle, leases []gateway.Lease) error {
	for range attempts {
		generation, err := read.Generation(ns)
		if err != nil {
			return fmt.Errorf("open ports for hosts inside: %w", err)
		}
		var messages []message
		for _, s := range newLeases(leases, time.Now()) {
			messages = append(append(messages, s.flush()), s.changes(unix.NFT_MSG_NEWSETELEM, s.elements)...)
		}
		err = transaction(ns, messages, generation)
		if errors.Is(err, unix.ERESTART) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open ports for hosts inside: %w", err)
		}
		advance(ns, generation)
		return nil
	}
	return fmt.Errorf("open ports for hosts inside: other programs changed rules %d times meanwhile: %w", attempts, unix.ERESTART)
}

// Leases are those in force, by protocol and port outside; none where there is no map of them.
func (Engine) Leases(ns *netns.Handle) (all []gateway.Lease, err error) {
	found, err := read.Expiring(ns, Family, Table, leasesName)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, e := range found {
		if len(e.Key) < 10 || len(e.Value) < 6 {
			continue // not as natkit has it
		}
		endpoint := func(address, port []byte) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address)), binary.BigEndian.Uint16(port))
		}
		all = append(all, gateway.Lease{Protocol: e.Key[4], External: endpoint(e.Key[:4], e.Key[8:]), Internal: endpoint(e.Value[:4], e.Value[4:]), Expires: now.Add(e.Left)})
	}
	slices.SortFunc(all, func(a, b gateway.Lease) int {
		return cmp.Or(a.External.Compare(b.External), cmp.Compare(a.Protocol, b.Protocol))
	})
	return all, nil
}

// asksHairpins reports whether a plan has connections come back inside.
func asksHairpins(p *gateway.Plan) bool {
	return p.PCP != nil || slices.ContainsFunc(p.Sources, func(e gateway.Entry) bool { return e.IsHairpin() })
}
