package main

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCountMessages(t *testing.T) {
	message := func(kind uint16, body int) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+body))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(b, make([]byte, (10+body+3)/4*4)...)[:(unix.NLMSG_HDRLEN+body+3)/4*4]
	}
	entry := message(unix.NFNL_SUBSYS_CTNETLINK<<8, 21)
	for name, tt := range map[string]struct {
		datagram []byte
		n        int64
		end, bad bool
	}{
		"nothing":     {},
		"entries":     {datagram: bytes.Repeat(entry, 3), n: 3},
		"the end":     {datagram: append(bytes.Clone(entry), message(unix.NLMSG_DONE, 4)...), n: 1, end: true},
		"an error":    {datagram: message(unix.NLMSG_ERROR, 20), end: true, bad: true},
		"cut off":     {datagram: entry[:len(entry)-8], end: true, bad: true},
		"zero length": {datagram: make([]byte, 32), end: true, bad: true},
	} {
		n, end, err := countMessages(tt.datagram)
		if n != tt.n || end != tt.end || (err != nil) != tt.bad {
			t.Errorf("%s: %d, %v, %v", name, n, end, err)
		}
	}
}

// TestPipeline: what natkit is compared with counts by state and source.
func TestPipeline(t *testing.T) {
	list := `ipv4     2 tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=203.0.113.1 sport=1 dport=2 src=203.0.113.1 dst=198.18.0.1 sport=2 dport=1 [ASSURED] mark=0 use=1
ipv4     2 tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=203.0.113.1 sport=2 dport=2 src=203.0.113.1 dst=198.18.0.1 sport=2 dport=2 [ASSURED] mark=0 use=1
ipv4     2 udp      17 29 src=198.18.0.2 dst=203.0.113.1 sport=1 dport=2 [UNREPLIED] src=203.0.113.1 dst=198.18.0.2 sport=2 dport=1 mark=0 use=1
`
	cmd := exec.Command("bash", "-c", strings.Replace(pipeline, "conntrack -L -o extended 2>/dev/null", "cat", 1))
	cmd.Stdin = strings.NewReader(list)
	out, err := cmd.Output()
	if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != "1 - 198.18.0.2 2 ESTABLISHED 198.18.0.1" {
		t.Errorf("%v, %q", err, got)
	}
}
