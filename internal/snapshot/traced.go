package snapshot

import "net/netip"

// Trace is what was recorded between two instants beside them, and how that went.
type Trace struct {
	Drops   *Drops   `json:"drops,omitempty"`
	Profile *Profile `json:"profile,omitempty"`
	SYNs    *SYNs    `json:"syns,omitempty"`
	// Parts are named PartDrops, PartProfile and PartSYNs: those that were asked for.
	Parts []Part `json:"parts"`
}

// Names of a trace's parts.
const (
	PartDrops   = "drops"
	PartProfile = "profile"
)

// Traced reports whether a part of that name was tried, and why it was not had;
// empty where it was.
func (s *Snapshot) Traced(name string) (tried bool, why string) {
	for _, p := range s.Parts {
		if p.Name == name {
			return true, p.Error
		}
	}
	return false, ""
}

// SourceAddress is the source without its port.
func (f DropFlow) SourceAddress() string { return addressOf(f.Source) }

// DestinationAddress is the destination without its port.
func (f DropFlow) DestinationAddress() string { return addressOf(f.Destination) }

func addressOf(end string) string {
	if ap, err := netip.ParseAddrPort(end); err == nil {
		return ap.Addr().String()
	}
	return end
}
