package netlink

import (
	"testing"

	"github.com/natkit/natkit/internal/unix"
)

// TestReads: requests that only read are distinguished from changes by the kernel's numbers.
func TestReads(t *testing.T) {
	for _, tt := range []struct {
		name    string
		family  int
		message Message
		generic string
		want    bool
	}{
		{"RTM_GETLINK", unix.NETLINK_ROUTE, Message{Type: 18}, "", true},
		{"RTM_GETRULE", unix.NETLINK_ROUTE, Message{Type: 34}, "", true},
		{"RTM_NEWLINK", unix.NETLINK_ROUTE, Message{Type: 16}, "", false},
		{"RTM_DELROUTE", unix.NETLINK_ROUTE, Message{Type: 25}, "", false},
		{"RTM_SETLINK", unix.NETLINK_ROUTE, Message{Type: 19}, "", false},
		{"IPCTNL_MSG_CT_GET", unix.NETLINK_NETFILTER, Message{Type: 1<<8 | 1}, "", true},
		{"IPCTNL_MSG_CT_GET_STATS", unix.NETLINK_NETFILTER, Message{Type: 1<<8 | 5}, "", true},
		{"IPCTNL_MSG_CT_NEW", unix.NETLINK_NETFILTER, Message{Type: 1 << 8}, "", false},
		{"IPCTNL_MSG_CT_DELETE", unix.NETLINK_NETFILTER, Message{Type: 1<<8 | 2}, "", false},
		{"IPCTNL_MSG_CT_GET_CTRZERO", unix.NETLINK_NETFILTER, Message{Type: 1<<8 | 3}, "", false},
		{"IPCTNL_MSG_EXP_GET", unix.NETLINK_NETFILTER, Message{Type: 2<<8 | 1}, "", false},
		{"NFT_MSG_GETRULE", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 7}, "", true},
		{"NFT_MSG_GETFLOWTABLE", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 23}, "", true},
		{"NFT_MSG_NEWRULE", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 6}, "", false},
		{"NFT_MSG_DELTABLE", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 2}, "", false},
		{"NFT_MSG_GETOBJ_RESET", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 21}, "", false},
		{"NFT_MSG_GETRULE_RESET", unix.NETLINK_NETFILTER, Message{Type: 10<<8 | 25}, "", false},
		{"NFNL_MSG_BATCH_BEGIN", unix.NETLINK_NETFILTER, Message{Type: 16}, "", false},
		{"SOCK_DIAG_BY_FAMILY", unix.NETLINK_INET_DIAG, Message{Type: 20}, "", true},
		{"SOCK_DESTROY", unix.NETLINK_INET_DIAG, Message{Type: 21}, "", false},
		{"CTRL_CMD_GETFAMILY", unix.NETLINK_GENERIC, Message{Type: 16, Body: []byte{3, 1, 0, 0}}, "", true},
		{"CTRL_CMD_NEWFAMILY", unix.NETLINK_GENERIC, Message{Type: 16, Body: []byte{1, 1, 0, 0}}, "", false},
		{"IPVS_CMD_GET_CONFIG", unix.NETLINK_GENERIC, Message{Type: 40, Body: []byte{13, 1, 0, 0}}, "IPVS", true},
		{"IPVS_CMD_FLUSH", unix.NETLINK_GENERIC, Message{Type: 40, Body: []byte{17, 1, 0, 0}}, "IPVS", false},
		{"a family that was not looked up", unix.NETLINK_GENERIC, Message{Type: 40, Body: []byte{13, 1, 0, 0}}, "", false},
		{"without a command", unix.NETLINK_GENERIC, Message{Type: 40}, "IPVS", false},
		{"a family of sockets that natkit has not", 9, Message{Type: 18}, "", false},
	} {
		if got := Reads(tt.family, tt.message, tt.generic); got != tt.want {
			t.Errorf("%s: reads %v, want %v", tt.name, got, tt.want)
		}
	}
}
