package conntrack

// MessageType is the ctnetlink message to build.
type MessageType uint8

// The messages that change the table (enum cntl_msg_types,
// include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	New    MessageType = 0
	Delete MessageType = 2
)
