// Package gateway describes NAT as one file: a Config is what an administrator
// writes, a Plan what an engine carries out. It computes; what touches the kernel are
// the engines (internal/gateway/engine).
package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"go.yaml.in/yaml/v4"
)

// Config is one gateway file, below its key "gateway". The order of rules means
// nothing: of several that match a packet the most specific one translates it
// (Compile defines which that is).
type Config struct {
	// Include and Define are what Parse puts the file together by: other files, and names for values.
	Include Composed `yaml:"include" json:"-"`
	Define  Composed `yaml:"define" json:"-"`
	// Engine is EngineNetfilter where empty.
	Engine Engine `yaml:"engine" json:"engine,omitempty"`
	// AcknowledgeBypass says that what EngineEBPF forwards passes by some of what the kernel does to other packets.
	AcknowledgeBypass Switch `yaml:"acknowledge-bypass" json:"acknowledge_bypass,omitempty"`
	// XDP is where the programs of EngineEBPF run; XDPAuto where empty.
	XDP XDP `yaml:"xdp" json:"xdp,omitempty"`
	// Expect sizes the connection table; zero leaves it as it is.
	Expect     Expect     `yaml:"expect" json:"expect,omitzero"`
	Interfaces Interfaces `yaml:"interfaces" json:"interfaces,omitzero"`
	// Marks are the bits of skb->mark and of connections' marks by which connections stay on one of several WAN
	// interfaces, and of skb->mark by which EngineEBPF hands packets to the stack; DefaultMarks where 0.
	Marks Bits `yaml:"marks" json:"marks,omitempty"`
	// ZoneMarks are those by which packets go to a zone; DefaultZoneMarks where 0.
	ZoneMarks Bits `yaml:"zone-marks" json:"zone_marks,omitempty"`
	// MSS bounds the maximum segment size of TCP connections through the gateway.
	MSS MSS `yaml:"mss" json:"mss,omitzero"`
	// Flowtable forwards established connections in the kernel's own fast path.
	Flowtable Switch `yaml:"flowtable" json:"flowtable,omitempty"`
	// Accounting counts packets and bytes of each connection
	// (net.netfilter.nf_conntrack_acct), so that status can report them per rule.
	Accounting Switch `yaml:"accounting" json:"accounting,omitempty"`
	Limits     Limits `yaml:"limits" json:"limits,omitzero"`
	// Helpers of the tracker read what these protocols announce, and translate it.
	Helpers Helpers `yaml:"helpers" json:"helpers,omitempty"`
	// TTL is that of packets that leave by the WAN interfaces, of IPv6 their hop limit; 0 leaves it.
	TTL TTL `yaml:"ttl" json:"ttl,omitempty"`
	// PCP lets hosts inside open ports to themselves.
	PCP PCP `yaml:"pcp" json:"pcp,omitzero"`
	// Sets are addresses and services that rules name.
	Sets Sets `yaml:"sets" json:"sets,omitempty"`
	// NAT are the rules of IPv4, IPv6 those of IPv6, in the same words.
	NAT  []Rule `yaml:"nat" json:"nat,omitempty"`
	IPv6 []Rule `yaml:"ipv6" json:"ipv6,omitempty"`
}

// Composed is read before all values are.
type Composed struct{}

// UnmarshalYAML is yaml.Unmarshaler.
func (Composed) UnmarshalYAML(*yaml.Node) error { return nil }

// Switch is written on or off (or true, false).
type Switch bool

// Expect is the load that the table is to hold.
type Expect struct {
	// Flows is the number of connections at one time, Rate of new ones per second.
	Flows Count   `yaml:"flows" json:"flows,omitempty"`
	Rate  PerTime `yaml:"rate" json:"rate_per_second,omitempty"`
}

// Count is a number of things, written 200000, 200k or 2M.
type Count int64

// PerTime is a number per second, written 5000/s.
type PerTime float64

// Interfaces name roles. Rules speak of roles ("wan") or of interfaces ("eth0").
type Interfaces struct {
	WAN WANs `yaml:"wan" json:"wan,omitempty"`
	LAN LANs `yaml:"lan" json:"lan,omitempty"`
}

// WANs are interfaces outside. Where one of several is written as a mapping, connections are divided among them.
type WANs []WAN

// WAN is an interface outside: its name, or a mapping with more.
type WAN struct {
	Interface string `yaml:"interface" json:"interface" check:"required"`
	// Weight is how many connections leave by it compared to others, 1 where nil; 0 is a standby.
	Weight *Share `yaml:"weight" json:"weight,omitempty"`
	// Via is the next hop, one of each family; where there is none, that of the host's default route.
	Via Addresses `yaml:"via" json:"via,omitempty"`
	// Probe has to answer through it; the next hop where nil.
	Probe *Probe `yaml:"probe" json:"probe,omitempty"`
	// Mapping: it was not written as a name alone.
	Mapping bool `json:"-"`
}

// LANs are interfaces inside.
type LANs []LAN

// LAN is an interface inside: its name, or a mapping with more.
type LAN struct {
	Interface string `yaml:"interface" json:"interface" check:"required"`
	// Zone keeps its hosts apart from those of other zones, which may have the same addresses.
	Zone Name `yaml:"zone" json:"zone,omitempty"`
	// Mapping: it was not written as a name alone.
	Mapping bool `json:"-"`
}

// Share is a number from 0 to 1000.
type Share uint16

// Bits are bits of a mark, one beside the other.
type Bits uint32

// Names is one name or a list.
type Names []string

// The roles that Rule fields may name in place of interfaces.
const (
	RoleWAN = "wan"
	RoleLAN = "lan"
)

// OnAny is what a dnat is on that is for every destination, as that of a transparent proxy.
const OnAny = "any"

// MSS is written "clamp" (to the route's MTU) or as a number of bytes.
type MSS struct {
	Clamp bool   `json:"clamp,omitempty"`
	Bytes uint16 `json:"bytes,omitempty"`
}

// Limits bound what one host inside can take for itself.
type Limits struct {
	// ConnectionsPerSource is how many connections one source address from inside may
	// have at one time; what is beyond is dropped and counted. 0 is no limit.
	ConnectionsPerSource Count `yaml:"connections-per-source" json:"connections_per_source,omitempty"`
}

// Helpers is one, or a list.
type Helpers []Helper

// Helper is the kernel's name of one: ftp, tftp, sip, pptp.
type Helper string

// TTL is a number from 1 to 255.
type TTL uint8

// Rule is exactly one of its kinds, and what is said of it.
type Rule struct {
	Masquerade *Masquerade `yaml:"masquerade" json:"masquerade,omitempty"`
	SNAT       *SNAT       `yaml:"snat" json:"snat,omitempty"`
	DNAT       *DNAT       `yaml:"dnat" json:"dnat,omitempty"`
	Static     *Static     `yaml:"static" json:"static,omitempty"`
	Netmap     *Netmap     `yaml:"netmap" json:"netmap,omitempty"`
	Notrack    *Notrack    `yaml:"notrack" json:"notrack,omitempty"`
	// NAT64 and NAT46 are read so that Check can say what to do: no engine has them.
	NAT64 *AcrossFamilies `yaml:"nat64" json:"nat64,omitempty"`
	NAT46 *AcrossFamilies `yaml:"nat46" json:"nat46,omitempty"`

	// Name is what people call the rule, wherever it is reported.
	Name Name `yaml:"name" json:"name,omitempty"`
	// Note is what people want to know of it, reported with Name.
	Note Remark `yaml:"note" json:"note,omitempty"`
	// Log has the kernel log the first packet of each connection that it translates.
	Log Log `yaml:"log" json:"log,omitzero"`
	// Prefer decides between rules that are equally specific and match the same packets: the greater one wins.
	Prefer Prefer `yaml:"prefer" json:"prefer,omitempty"`
	// Enabled leaves the rule out where it is off.
	Enabled *Switch `yaml:"enabled" json:"enabled,omitempty"`
}

// KindFields is part of every kind of rule, so that a word that belongs beside the kind has an error of its own.
type KindFields struct{}

// Misplaced says where a word of Rule stands; empty for others.
func (KindFields) Misplaced(key string) string {
	for i := range reflect.TypeFor[Rule]().NumField() {
		if word := yamlWord(reflect.TypeFor[Rule]().Field(i)); word == key && !slices.Contains(kindWords, key) {
			return key + " is no part of the kind's mapping: write it beside the kind, in a line of its own below it"
		}
	}
	return ""
}

func yamlWord(f reflect.StructField) string {
	word, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return word
}

// Conditions are what rules may ask of a connection's first packet besides their own words. All that are written
// must hold; those that begin with except hold for what they do not name.
type Conditions struct {
	// ExceptFrom are clients that are left alone.
	ExceptFrom Prefixes `yaml:"except-from" json:"except_from,omitempty"`
	// ExceptPort are services that are left alone.
	ExceptPort Services `yaml:"except-port" json:"except_port,omitempty"`
	// In is the interface or role by which it comes in; ExceptIn are others.
	In       Names `yaml:"in" json:"in,omitempty"`
	ExceptIn Names `yaml:"except-in" json:"except_in,omitempty"`
	// Zone is that of the hosts inside: of those whose connections a rule about sources translates, of those that a
	// rule about destinations leads to.
	Zone Name `yaml:"zone" json:"zone,omitempty"`
	// Mark is skb->mark, of which ExceptMark has values that are left alone.
	Mark       Mark  `yaml:"mark" json:"mark,omitzero"`
	ExceptMark Marks `yaml:"except-mark" json:"except_mark,omitempty"`
	// User and Group own the program on the gateway that sends it. What the gateway forwards has no user, and
	// matches neither these nor their exceptions.
	User        IDs `yaml:"user" json:"user,omitempty"`
	ExceptUser  IDs `yaml:"except-user" json:"except_user,omitempty"`
	Group       IDs `yaml:"group" json:"group,omitempty"`
	ExceptGroup IDs `yaml:"except-group" json:"except_group,omitempty"`
	// DSCP is a code point (RFC 2474).
	DSCP       CodePoints `yaml:"dscp" json:"dscp,omitempty"`
	ExceptDSCP CodePoints `yaml:"except-dscp" json:"except_dscp,omitempty"`
	// UTCHours and UTCDays are when it begins, each for itself.
	UTCHours       HourRanges `yaml:"utc-hours" json:"utc_hours,omitempty"`
	ExceptUTCHours HourRanges `yaml:"except-utc-hours" json:"except_utc_hours,omitempty"`
	UTCDays        Days       `yaml:"utc-days" json:"utc_days,omitempty"`
	ExceptUTCDays  Days       `yaml:"except-utc-days" json:"except_utc_days,omitempty"`
}

// Sources says whose connections a rule about sources translates.
type Sources struct {
	// From is where they come from; anywhere where empty.
	From Prefixes `yaml:"from" json:"from,omitempty"`
	// OnlyTo are the destinations that they go to, as they are after a dnat, Port their services; all where
	// empty. ExceptTo are destinations that are left alone.
	OnlyTo   Prefixes `yaml:"only-to" json:"only_to,omitempty"`
	Port     Services `yaml:"port" json:"port,omitempty"`
	ExceptTo Prefixes `yaml:"except-to" json:"except_to,omitempty"`
	// Out is the interface or role that they leave by; ExceptOut are others. Where both are empty: the WAN
	// interfaces where the file names some, any interface where not.
	Out       Names `yaml:"out" json:"out,omitempty"`
	ExceptOut Names `yaml:"except-out" json:"except_out,omitempty"`
}

// Choice says how a port is chosen.
type Choice struct {
	// Ports bound what is given; "keep" gives the source port itself or nothing.
	Ports Ports `yaml:"ports" json:"ports,omitzero"`
	// Random is empty, "random" (NF_NAT_RANGE_PROTO_RANDOM) or "fully"
	// (NF_NAT_RANGE_PROTO_RANDOM_FULLY).
	Random Random `yaml:"random" json:"random,omitempty"`
}

// Random is a way to choose ports.
type Random string

const (
	RandomPorts Random = "random"
	RandomFully Random = "fully"
)

// Masquerade gives connections the address of the interface by which they leave.
type Masquerade struct {
	KindFields
	Sources    `yaml:",inline"`
	Choice     `yaml:",inline"`
	Conditions `yaml:",inline"`
}

// SNAT gives connections an address out of To.
type SNAT struct {
	KindFields
	Sources `yaml:",inline"`
	To      Ranges `yaml:"to" json:"to" check:"required"`
	Choice  `yaml:",inline"`
	// Persistent, unless it is off, gives a source one address of several for every
	// destination (NF_NAT_RANGE_PERSISTENT; RFC 6888 REQ-2, "paired").
	Persistent *Switch `yaml:"persistent" json:"persistent,omitempty"`
	Conditions `yaml:",inline"`
}

// DNAT sends what comes for an address of the gateway to a host inside.
type DNAT struct {
	KindFields
	// On is the address, or the role or interface whose present addresses are meant.
	On On `yaml:"on" json:"on" check:"required"`
	// Port is tcp/8080, udp/5000-5100, several of these or empty: then every protocol.
	Port Services `yaml:"port" json:"port,omitempty"`
	// From restricts the clients; anybody where empty.
	From Prefixes `yaml:"from" json:"from,omitempty"`
	// OnlyTo are the destinations of a rule on any, ExceptTo those that are left alone.
	OnlyTo   Prefixes `yaml:"only-to" json:"only_to,omitempty"`
	ExceptTo Prefixes `yaml:"except-to" json:"except_to,omitempty"`
	// To is an address with or without a port. A range of ports is kept as it is; with a range of as many
	// ports each becomes the one at its place.
	To Backends `yaml:"to" json:"to" check:"required"`
	// Balance chooses one of several To: "round-robin", also where empty, gives each new
	// connection the next one, "hash" a client the same one each time.
	Balance Balance `yaml:"balance" json:"balance,omitempty"`
	// Health is how each of several To is checked; one that fails gets no new connections. nil: none is.
	Health *Health `yaml:"health" json:"health,omitempty"`
	// AllDown is what happens to new connections while the checks of all fail.
	AllDown AllDown `yaml:"all-down" json:"all_down,omitempty"`
	// Hairpin lets hosts inside reach To by On; they are seen there under On's address
	// (RFC 4787 REQ-9).
	Hairpin Switch `yaml:"hairpin" json:"hairpin,omitempty"`
	// Local does the same for programs on the gateway itself.
	Local      Switch `yaml:"local" json:"local,omitempty"`
	Conditions `yaml:",inline"`
}

// Health is a check of a host: that it accepts a connection of TCP, or answers HTTP with a status of 200 to 399.
type Health struct {
	TCP  Switch  `yaml:"tcp" json:"tcp,omitempty"`
	HTTP URLPath `yaml:"http" json:"http,omitempty"`
	// Port is where, if it is not the port to which connections go.
	Port PortNumber `yaml:"port" json:"port,omitempty"`
	// Interval is the time from one check to the next, Timeout how long an answer may take. Where they are 0:
	// DefaultInterval, DefaultTimeout.
	Interval Duration `yaml:"interval" json:"interval_ns,omitempty"`
	Timeout  Duration `yaml:"timeout" json:"timeout_ns,omitempty"`
	// Rise is how many checks in a row have to succeed until a host is up again, Fall how many have to fail until it
	// is down. Where they are 0: DefaultRise, DefaultFall.
	Rise Times `yaml:"rise" json:"rise,omitempty"`
	Fall Times `yaml:"fall" json:"fall,omitempty"`
}

// The defaults of Health.
const (
	DefaultInterval = 2 * time.Second
	DefaultTimeout  = time.Second
	DefaultRise     = 2
	DefaultFall     = 3
)

// Name is a word of up to 40 letters, digits, dots, hyphens and underscores.
type Name string

// Remark is one line of text without quotation marks, with Name of up to mostLabel bytes.
type Remark string

// Log is written on, or as a mapping of what differs from the defaults; the zero value is off.
type Log struct {
	On bool `json:"on"`
	// Rate bounds the lines, DefaultLogRate where it is 0.
	Rate PerTime `yaml:"rate" json:"rate_per_second,omitempty"`
	// Prefix begins each line; empty stands for one with the rule's place and name.
	Prefix LogPrefix `yaml:"prefix" json:"prefix,omitempty"`
}

// DefaultLogRate is how many lines a second a rule logs unless it says another number.
const DefaultLogRate PerTime = 5

// LogPrefix is text of up to NF_LOG_PREFIXLEN-1 bytes.
type LogPrefix string

// Prefer is a number from 1 to 1000; 0 is less than all of them.
type Prefer int

// Static makes an address outside stand for one inside, in both directions, whatever
// the protocol: a floating address. Pairs, in the place of both, is a set that has many of these.
type Static struct {
	KindFields
	Inside  Address `yaml:"inside" json:"inside,omitzero"`
	Outside Address `yaml:"outside" json:"outside,omitzero"`
	Pairs   SetName `yaml:"pairs" json:"pairs,omitempty"`
	// Stateless rewrites packet by packet, without the connection tracker.
	Stateless Switch `yaml:"stateless" json:"stateless,omitempty"`
	// Hairpin and Local are as in DNAT.
	Hairpin Switch `yaml:"hairpin" json:"hairpin,omitempty"`
	Local   Switch `yaml:"local" json:"local,omitempty"`
	// OnlyTo and ExceptTo are the other ends, both ways; Port is the service that a connection is to, both ways.
	OnlyTo   Prefixes `yaml:"only-to" json:"only_to,omitempty"`
	ExceptTo Prefixes `yaml:"except-to" json:"except_to,omitempty"`
	Port     Services `yaml:"port" json:"port,omitempty"`
	// Out is by what connections of the host leave; In, of Conditions, by what those to it come in. Both are the WAN
	// interfaces where empty.
	Out        Names `yaml:"out" json:"out,omitempty"`
	ExceptOut  Names `yaml:"except-out" json:"except_out,omitempty"`
	Conditions `yaml:",inline"`
}

// isNarrow reports whether it is not for all connections of its host.
func (s *Static) isNarrow() bool {
	all := *s
	all.KindFields, all.Inside, all.Outside, all.Pairs, all.Stateless, all.Hairpin, all.Local = KindFields{}, Address{}, Address{}, "", false, false, false
	return !reflect.ValueOf(all).IsZero()
}

// Netmap is Static for a whole prefix; the bits of the host stay.
type Netmap struct {
	KindFields
	Inside  Prefix `yaml:"inside" json:"inside" check:"required"`
	Outside Prefix `yaml:"outside" json:"outside" check:"required"`
	// Out is the interface or role outside; the WAN interfaces where empty.
	Out Names `yaml:"out" json:"out,omitempty"`
	// Zone is that of Inside.
	Zone Name `yaml:"zone" json:"zone,omitempty"`
	// Stateless is NPTv6 (RFC 6296) with IPv6: checksum-neutral, without the tracker.
	Stateless Switch `yaml:"stateless" json:"stateless,omitempty"`
}

// Notrack keeps the tracker from what comes for an address and from what it sends.
type Notrack struct {
	KindFields
	On   Address `yaml:"on" json:"on" check:"required"`
	Port Port    `yaml:"port" json:"port,omitzero"`
}

// AcrossFamilies is stateful NAT between IPv6 and IPv4 (RFC 6146, RFC 6052).
type AcrossFamilies struct {
	// Prefix is the IPv6 prefix that stands for all of IPv4.
	Prefix Prefix   `yaml:"prefix" json:"prefix" check:"required"`
	From   Prefixes `yaml:"from" json:"from,omitempty"`
	To     Ranges   `yaml:"to" json:"to,omitempty"`
}

// The values of rules. Each is written as a string; parse errors keep their place.
type (
	// Prefix is an address or a prefix, masked; in Prefixes it may be the name of a set in its place.
	Prefix struct {
		netip.Prefix
		Set string
	}
	// Prefixes is one, or a list.
	Prefixes []Prefix
	// Address is that of one host.
	Address struct{ netip.Addr }
	// Addresses is one, or a list.
	Addresses []Address
	// Ranges is one, or a list: 203.0.113.7, 203.0.113.8-203.0.113.15, 203.0.113.32/27.
	Ranges []nat.AddrRange
	// On is an address, or the name of a role or an interface.
	On struct {
		Address netip.Addr `json:"address,omitzero"`
		Name    string     `json:"name,omitempty"`
	}
	// Ports bounds ports, or keeps them; the zero value leaves them to the kernel.
	Ports struct {
		First uint16 `json:"first,omitempty"`
		Last  uint16 `json:"last,omitempty"`
		Keep  bool   `json:"keep,omitempty"`
	}
	// Port is a protocol ("tcp", "udp", "sctp", "icmp"…) and its destination ports;
	// First is 0 where all are meant. In Services it may be a set: Protocol is its name behind a $.
	Port struct {
		Protocol string `json:"protocol,omitempty"`
		First    uint16 `json:"first,omitempty"`
		Last     uint16 `json:"last,omitempty"`
	}
	// Services are one Port, or a list.
	Services []Port
	// Mark is a value of skb->mark, 0x10, and which bits of it count, 0x10/0xf0; all where that is left out.
	Mark struct{ nat.Mark }
	// Marks is one, or a list.
	Marks []Mark
	// IDs are numbers of users or groups, or ranges of them: one, or a list.
	IDs []ID
	// ID is 33 or 1000-1999.
	ID struct{ nat.IDs }
	// CodePoints is one, or a list: ef, af41, 46.
	CodePoints []CodePoint
	// CodePoint is a DSCP.
	CodePoint uint8
	// HourRanges is one, or a list.
	HourRanges []HourRange
	// HourRange is 08:00-18:00, or 22:00-06:00 over midnight: minutes of the day, without End.
	HourRange struct {
		First int `json:"first_minute"`
		End   int `json:"end_minute"`
	}
	// Days is one, or a list: mon, sat-sun.
	Days []Day
	// Day is one of the week.
	Day time.Weekday
	// Backends are one, or a list: an address with or without a port; without one the
	// port stays. In a list {address: 10.0.0.1:80, weight: 3} has a weight.
	Backends []nat.Backend
	// Balance is a nat.Balance.
	Balance nat.Balance
	// AllDown is a nat.AllDown.
	AllDown nat.AllDown
	// URLPath is what a request of HTTP asks for: /health?deep=1.
	URLPath string
	// PortNumber is one port.
	PortNumber uint16
	// Duration is written 500ms, 2s or 1m.
	Duration time.Duration
	// Times is a small number, at least 1.
	Times int
	// Weight is how often one of several is chosen compared to others.
	Weight uint32
)

// Engine is what carries a plan out.
type Engine string

const (
	// EngineNetfilter is the kernel's own NAT, by nftables.
	EngineNetfilter Engine = "netfilter"
	// EngineEBPF are eBPF programs of natkit's own, at the interfaces, for rules whose mapping is fixed. EngineNetfilter
	// carries out the others, and these where a packet does not come to the programs.
	EngineEBPF Engine = "ebpf"
)

// UnmarshalYAML reads it and keeps the place for an error.
func (e *Engine) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "an engine: netfilter, ebpf", func(text string) error {
		*e = Engine(text)
		if *e != EngineNetfilter && *e != EngineEBPF {
			return document.Unknown(text, string(EngineNetfilter), string(EngineEBPF))
		}
		return nil
	})
}

// XDP is where the programs of EngineEBPF run: they are at tc as well.
type XDP string

const (
	// XDPAuto is before the stack where a driver does that and frames come with their checksums: not of veths.
	XDPAuto XDP = "auto"
	// XDPNative is so of veths too.
	XDPNative XDP = "native"
	// XDPGeneric is so in the stack of drivers that run no programs.
	XDPGeneric XDP = "generic"
	// XDPOff is at tc alone.
	XDPOff XDP = "off"
)

// UnmarshalYAML reads it and keeps the place for an error.
func (x *XDP) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "where XDP programs run: auto, native, generic, off", func(text string) error {
		*x = XDP(text)
		switch *x {
		case XDPAuto, XDPNative, XDPGeneric, XDPOff:
			return nil
		}
		return document.Unknown(text, string(XDPAuto), string(XDPNative), string(XDPGeneric), string(XDPOff))
	})
}

// Digest names a plan by what it says: the SHA-256 of its JSON form, in hex. Two
// plans of one digest do the same.
func Digest(p *Plan) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic("gateway plan as JSON: " + err.Error()) // its fields all have a form
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
