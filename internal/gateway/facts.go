package gateway

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// Facts is what Compile and Check need to know of a host. The zero value knows
// nothing: a file is then only checked by itself.
type Facts struct {
	// Known is false where the host was not looked at.
	Known      bool        `json:"known"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Sessions are the administrator's own connections to this host.
	Sessions []Session `json:"sessions,omitempty"`
	// Foreign are other programs' base chains that packets pass before or after ours.
	Foreign []Foreign `json:"foreign,omitempty"`
	// Kernel is the running one; without a release where it is not known.
	Kernel snapshot.Kernel `json:"kernel"`
	// Conntrack is the connection table's size, Sysctls the values that a plan may
	// change.
	Conntrack *snapshot.ConntrackSize `json:"conntrack,omitempty"`
	Sysctls   snapshot.Sysctls        `json:"sysctls,omitempty"`
	// Initial is true in the initial network namespace.
	Initial bool `json:"initial"`
	// Flowtable tells whether the kernel has flowtables, and if not why.
	Flowtable Support `json:"flowtable"`
	// Unknown says what could not be read of a host that was looked at, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Support says whether the kernel can do something; Reason where it cannot, or where
// it is Unknown, as it could not be tried.
type Support struct {
	OK      bool   `json:"ok"`
	Unknown bool   `json:"unknown,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// Interface is one of the host's.
type Interface struct {
	Name      string         `json:"name"`
	Index     int            `json:"index"`
	Up        bool           `json:"up"`
	MTU       int            `json:"mtu_bytes"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Session is a TCP connection from Client to Server, which is an address of this host.
type Session struct {
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
}

// Foreign is a base chain that is not natkit's.
type Foreign struct {
	// Source is "nftables", "iptables-nft" or "iptables-legacy"; Owner a guess by
	// names: "docker", "kubernetes", "firewalld", or empty.
	Source string `json:"source"`
	Owner  string `json:"owner,omitempty"`
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Type   string `json:"type"`
	Hook   string `json:"hook"`
	// Priority orders chains at a hook, lower first.
	Priority int32 `json:"priority"`
	// Policy is what becomes of packets that no rule with conditions decides: "accept",
	// "drop" or "reject", by the chain's policy or a rule that is for all.
	Policy string `json:"policy,omitempty"`
	// Accepts are the conditions of its rules that accept, where the policy is another.
	Accepts []snapshot.NATRule `json:"accepts,omitempty"`
	// Rules is how many rules it leads to.
	Rules int `json:"rules"`
	// NAT are its rules that translate, as far as they are understood.
	NAT []snapshot.NATRule `json:"nat,omitempty"`
}

// Finding is what Check says about a place in the file.
type Finding struct {
	// ID is stable kebab-case: "rule-shadowed".
	ID string `json:"id"`
	// Severity is Refuse (apply will not do it) or Warn.
	Severity Severity `json:"severity"`
	// Line and Column are counted from 1; 0 where it concerns the whole file.
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Rule    *Ref   `json:"rule,omitempty"`
	Message string `json:"message"`
	// Advice is what to do about it: a sentence, or commands, one a line.
	Advice string `json:"advice,omitempty"`
	// Excerpt is the line of the file with a mark below the column.
	Excerpt string `json:"-"`
}

// Placed is the message behind its line, where it concerns one.
func (f *Finding) Placed() string {
	if f.Line == 0 {
		return f.Message
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.Message)
}

// Severity of a Finding.
type Severity string

const (
	Refuse Severity = "refuse"
	Warn   Severity = "warn"
)

// AddressesOf are those of an interface; none where it is not there.
func (f *Facts) AddressesOf(name string) []netip.Prefix {
	for _, i := range f.Interfaces {
		if i.Name == name {
			return i.Addresses
		}
	}
	return nil
}

// Has tells whether an interface has the address.
func (f *Facts) Has(a netip.Addr) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}
