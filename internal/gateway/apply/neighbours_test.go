package apply

import (
	"testing"

	"github.com/natkit/natkit/internal/netlink"
	"golang.org/x/sys/unix"
)

func TestNeighboursMoved(t *testing.T) {
	message := func(kind uint16, index byte, address, mac string) netlink.Message {
		body := append(make([]byte, 12), netlink.AppendAttr(nil, 1, []byte(address))...)
		body[4] = index
		if mac != "" {
			body = append(body, netlink.AppendAttr(nil, 2, []byte(mac))...)
		}
		return netlink.Message{Type: kind, Body: body}
	}
	n := neighbours{}
	for i, step := range []struct {
		netlink.Message
		moved bool
	}{
		{message(unix.RTM_NEWNEIGH, 1, "host", ""), false},
		{message(unix.RTM_NEWNEIGH, 1, "host", "aaaaaa"), false},
		{message(unix.RTM_NEWNEIGH, 1, "host", "aaaaaa"), false},
		{message(unix.RTM_NEWNEIGH, 2, "host", "bbbbbb"), false},
		{message(unix.RTM_DELNEIGH, 1, "host", "aaaaaa"), false},
		{message(unix.RTM_NEWNEIGH, 1, "host", "bbbbbb"), true},
		{netlink.Message{Type: unix.RTM_NEWNEIGH, Body: []byte{1}}, true},
	} {
		if got := n.moved(step.Message); got != step.moved {
			t.Errorf("step %d: %t", i, got)
		}
	}
}
