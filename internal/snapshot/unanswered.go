package snapshot

import "net/netip"

// Unanswered are the connections that nobody has answered: TCP in SYN_SENT and UDP
// without a reply.
type Unanswered struct {
	TCP int64 `json:"tcp"`
	UDP int64 `json:"udp"`
	// Sources are those with most unanswered entries of one protocol, Services what
	// was asked for in vain.
	Sources  []UnansweredSource `json:"sources"`
	Services []Talker           `json:"services"`
}

// UnansweredSource is an address whose connections of one protocol were not answered.
type UnansweredSource struct {
	Who      string `json:"who"`
	Protocol string `json:"protocol"`
	// Entries have no answer, of OfEntries that the address has in all, whatever
	// the protocol.
	Entries   int64 `json:"entries"`
	OfEntries int64 `json:"of_entries"`
}

// IdleEstablished tells for how long TCP connections in ESTABLISHED have been idle:
// the timeout less what is left of it. Offloaded entries have timeouts of their own
// and are not in it.
type IdleEstablished struct {
	// TimeoutSeconds is nf_conntrack_tcp_timeout_established. Entries that had their
	// last packet while it was another one seem as much more or less idle.
	TimeoutSeconds int64 `json:"timeout_seconds"`
	Entries        int64 `json:"entries"`
	// Bands are in order of time, each up to the next one.
	Bands []IdleBand `json:"bands"`
	// Sources and Services of the entries that are idle for IdleLong or more.
	Sources  []Talker `json:"sources"`
	Services []Talker `json:"services"`
}

// IdleLong is how long, in seconds, a connection may be idle without that being
// strange: RFC 5382 (REQ-5) lets no NAT forget it sooner, as hosts send TCP
// keepalives every two hours.
const IdleLong = 7440

// IdleBand counts entries that are idle for FromSeconds or more.
type IdleBand struct {
	FromSeconds int64 `json:"from_seconds"`
	Entries     int64 `json:"entries"`
}

// IdleFrom counts the entries idle for so long or more; seconds should be the
// beginning of a band.
func (i *IdleEstablished) IdleFrom(seconds int64) int64 {
	n := int64(0)
	for _, b := range i.Bands {
		if b.FromSeconds >= seconds {
			n += b.Entries
		}
	}
	return n
}

// OneWay is UDP of one service, translated in one way, whose clients sent packets
// between two dumps and had no answer, as far as is known: each packet keeps the entry,
// and with it the translation, for another timeout.
type OneWay struct {
	// Service is the destination that clients name, Target the one that their packets
	// are sent to: the same where it is not translated.
	Service netip.AddrPort `json:"service"`
	Target  netip.AddrPort `json:"target"`
	Zone    uint16         `json:"zone,omitempty"`
	Entries int64          `json:"entries"`
	// OldestSeconds is the age of the oldest one, at least.
	OldestSeconds float64 `json:"oldest_seconds"`
	// Source is one of the clients.
	Source netip.Addr `json:"source"`
	// HadAnswers: there were answers at some time. Whether any came between the dumps is
	// known only where the kernel counts (nf_conntrack_acct): then Silent, none did. Kept
	// of what is translated only.
	HadAnswers bool `json:"had_answers,omitempty"`
	Silent     bool `json:"silent,omitempty"`
}

// Unanswered reports whether it is known that no answer comes.
func (o *OneWay) Unanswered() bool { return !o.HadAnswers || o.Silent }

// Translated reports whether packets go elsewhere than the client named.
func (o *OneWay) Translated() bool { return o.Service != o.Target }

// Rate is how many entries of one source are new per second.
type Rate struct {
	Who       string  `json:"who"`
	PerSecond float64 `json:"per_second"`
}
