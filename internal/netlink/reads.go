package netlink

import (
	"slices"

	"github.com/natkit/natkit/internal/unix"
)

// netfilterReads are the requests of nfnetlink that read, by subsystem (uapi/linux/netfilter/nfnetlink.h). Those that
// reset counters on the way (IPCTNL_MSG_CT_GET_CTRZERO, NFT_MSG_GETRULE_RESET and its like) are none.
var netfilterReads = map[uint16][]uint16{
	// IPCTNL_MSG_CT_GET, _GET_STATS_CPU, _GET_STATS, _GET_DYING, _GET_UNCONFIRMED
	unix.NFNL_SUBSYS_CTNETLINK: {1, 4, 5, 6, 7},
	// NFT_MSG_GETTABLE, _GETCHAIN, _GETRULE, _GETSET, _GETSETELEM, _GETGEN, _GETOBJ, _GETFLOWTABLE
	subsystemNFTables: {1, 4, 7, 10, 13, 16, 19, 23},
}

const (
	subsystemNFTables = 10 // NFNL_SUBSYS_NFTABLES
	sockDiagByFamily  = 20 // SOCK_DIAG_BY_FAMILY; 21 is SOCK_DESTROY
	genericControl    = 16 // GENL_ID_CTRL
	getFamily         = 3  // CTRL_CMD_GETFAMILY
	minType           = 16 // NLMSG_MIN_TYPE
)

// genericReads are the commands of generic netlink that read, by family.
var genericReads = map[string][]byte{
	"IPVS":   {13}, // IPVS_CMD_GET_CONFIG
	"netdev": {1},  // NETDEV_CMD_DEV_GET
}

// Reads reports whether a request to a family of sockets (unix.NETLINK_*) is one of those by which natkit reads. It does
// not know others, and reports that they do not. generic is the name of the family of generic netlink that the message's
// type stands for.
func Reads(family int, m Message, generic string) bool {
	switch family {
	case unix.NETLINK_ROUTE: // RTM_NEW…, DEL…, GET…, SET… in turn, from RTM_BASE on (rtnetlink_rcv_msg)
		return m.Type >= minType && m.Type&3 == 2
	case unix.NETLINK_NETFILTER:
		return slices.Contains(netfilterReads[m.Type>>8], m.Type&0xff)
	case unix.NETLINK_INET_DIAG:
		return m.Type == sockDiagByFamily
	case unix.NETLINK_GENERIC:
		if len(m.Body) == 0 {
			return false
		}
		return m.Type == genericControl && m.Body[0] == getFamily || slices.Contains(genericReads[generic], m.Body[0])
	}
	return false
}
