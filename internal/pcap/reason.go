package pcap

// Reason is why a packet was not understood. Its text is stable.
type Reason uint8

// The reasons.
const (
	Decoded Reason = iota
	// UnknownLinkType is a link layer that natkit does not read.
	UnknownLinkType
	// UnknownInterface is a packet of an interface that the file does not describe.
	UnknownInterface
	// NotIP is a frame that carries something else, such as ARP.
	NotIP
	// CutHeader is a header that is not all there.
	CutHeader
	// MalformedHeader is a header whose fields contradict each other.
	MalformedHeader
	// Encrypted is a frame of a wireless network whose payload is protected.
	Encrypted
	reasons
)

var reasonNames = [reasons]string{
	Decoded:          "decoded",
	UnknownLinkType:  "link type not supported",
	UnknownInterface: "interface not described",
	NotIP:            "not IP",
	CutHeader:        "header cut",
	MalformedHeader:  "header malformed",
	Encrypted:        "encrypted",
}

func (r Reason) String() string {
	if r >= reasons {
		return "unknown"
	}
	return reasonNames[r]
}

// MarshalText lets JSON have the words.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
