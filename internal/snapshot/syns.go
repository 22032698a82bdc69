package snapshot

// PartSYNs is the name of a trace's part.
const PartSYNs = "syns"

// SYNs are the connection attempts that came to the namespace's listeners while natkit
// listened, and how it answered them. Numbers are those of the Sample, not scaled.
type SYNs struct {
	Seconds float64 `json:"seconds"`
	// Sample: the SYNs of one in so many (source address, source port) were looked
	// at, in the end; 1 is all.
	Sample int `json:"sample"`
	// SYNs to listeners. Repeated ones have the addresses and the sequence number of a
	// former one: the client had no answer, or none that it could use. Their port may be
	// another one, where a NAT has forgotten the former.
	SYNs     uint64 `json:"syns"`
	Repeated uint64 `json:"repeated"`
	// Late are the connections whose SYN came again LateSYN seconds or more after it came
	// first: they came about late, or not at all. LateKnown is false in recordings of a
	// natkit that did not look for them.
	Late      uint64 `json:"late"`
	LateKnown bool   `json:"late_known,omitempty"`
	// Elsewhere counts SYNs to where nobody in this namespace listens.
	Elsewhere uint64 `json:"elsewhere"`
	// Lost segments, SYNs or answers, were not seen: there was no room for them.
	Lost uint64 `json:"lost"`
	// AnswersSeconds is for how long answers were looked at, too: from the first sign
	// of a SYN that was not accepted. 0 where there was none.
	AnswersSeconds float64 `json:"answers_seconds"`
	// Sources are those with most rejected SYNs, then with most repeated ones, then
	// with most. MoreSources are not in it.
	Sources     []SYNSource `json:"sources"`
	MoreSources int64       `json:"more_sources,omitempty"`
}

// LateSYN is longer than any client waits that sends its SYN again at once, as Linux does
// after a RST, and shorter than the time after which all others do.
const LateSYN = 0.5

// SYNSource is what one address asked one address of the namespace for.
type SYNSource struct {
	Source string `json:"source"`
	// Destination is without its port: clocks are of pairs of addresses.
	Destination string `json:"destination"`
	SYNs        uint64 `json:"syns"`
	Repeated    uint64 `json:"repeated"`
	// Late is as in SYNs.
	Late uint64 `json:"late,omitempty"`
	// Plain SYNs had no TCP timestamp.
	Plain uint64 `json:"without_timestamps"`
	// ByTimestamp and BySequence were answered by an ACK that does not acknowledge
	// them, as TIME_WAIT does: because their timestamp is behind the one in that ACK,
	// or because their sequence number is not after its acknowledgement number.
	ByTimestamp uint64 `json:"rejected_by_timestamp"`
	BySequence  uint64 `json:"rejected_by_sequence"`
	// TimeWait are those of them whose tuple the kernel had in TIME_WAIT (or
	// FIN_WAIT2) when it was asked at once; a client's RST may have removed it.
	TimeWait uint64 `json:"in_time_wait"`
	// Challenged SYNs met a connection that is not closed (RFC 5961); they are not in
	// ByTimestamp and BySequence.
	Challenged uint64 `json:"challenged"`
	// Clocks is how many timestamp clocks there are, at least; 0 where no timestamp
	// was seen. PerConnection: nearly each connection has an offset of its own, which
	// says nothing of the number of machines.
	Clocks        int  `json:"clocks"`
	PerConnection bool `json:"offset_per_connection,omitempty"`
}

// Rejected SYNs of all sources, by their timestamp and by their sequence number.
func (s *SYNs) Rejected() (byTimestamp, bySequence uint64) {
	for i := range s.Sources {
		byTimestamp += s.Sources[i].ByTimestamp
		bySequence += s.Sources[i].BySequence
	}
	return byTimestamp, bySequence
}
