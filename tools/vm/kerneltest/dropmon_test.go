package kerneltest

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// Commands and attributes of drop_monitor, include/uapi/linux/net_dropmon.h.
const (
	dmConfig      = 2
	dmStart       = 3
	dmStop        = 4
	dmPacketAlert = 5

	dmAttrAlertMode = 1
	dmAttrSymbol    = 3
	dmAttrPayload   = 7

	dmModePacket = 1
)

// TestDropMonitor: a packet that a rule drops is reported with its bytes.
func TestDropMonitor(t *testing.T) {
	n := newNodes(t)
	testutil.NeedFeature(t, testutil.DropMonitor)
	trackAll(t, n.router, "udp dport 7000 drop;")
	echoUDP(t, n.server, serverA) // without the rule nothing would be dropped
	m := startMonitor(t)
	c := dial(t, n.client, "udp4", serverA)
	const token = "dropped on purpose"
	if _, err := io.WriteString(c, token); err != nil {
		t.Fatal(err)
	}
	// The host may drop packets of others meanwhile.
	for {
		symbol, payload, err := m.next()
		if err != nil {
			t.Fatalf("the dropped packet is not reported: %v", err)
		}
		if bytes.Contains(payload, []byte(token)) {
			t.Logf("dropped in %s", symbol)
			return
		}
	}
}

// monitor has a connection for commands and one for alerts: among alerts the answer
// to a command would not be found.
type monitor struct {
	t               *testing.T
	control, alerts *mdlayher.Conn
	family          uint16
}

// startMonitor lets the kernel report each dropped packet until the test ends.
func startMonitor(t *testing.T) *monitor {
	t.Helper()
	family, err := netlink.GenlFamilyGet("NET_DM")
	if err != nil {
		t.Fatal(err)
	}
	m := &monitor{t, dialGeneric(t), dialGeneric(t), family.ID}
	attrs := mdlayher.NewAttributeEncoder()
	attrs.Uint8(dmAttrAlertMode, dmModePacket)
	mode, err := attrs.Encode()
	if err != nil {
		t.Fatal(err)
	}
	m.command(dmConfig, mode)
	m.command(dmStart, nil)
	t.Cleanup(func() { m.command(dmStop, nil) })
	for _, g := range family.Groups {
		if err := m.alerts.JoinGroup(g.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.alerts.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute))); err != nil {
		t.Fatal(err)
	}
	return m
}

func dialGeneric(t *testing.T) *mdlayher.Conn {
	t.Helper()
	conn, err := mdlayher.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// command sends one and waits for the kernel's consent.
func (m *monitor) command(cmd byte, attrs []byte) {
	m.t.Helper()
	const version = 2
	_, err := m.control.Execute(mdlayher.Message{
		Header: mdlayher.Header{Type: mdlayher.HeaderType(m.family), Flags: mdlayher.Request | mdlayher.Acknowledge},
		Data:   append([]byte{cmd, version, 0, 0}, attrs...),
	})
	if err != nil {
		m.t.Errorf("drop_monitor, command %d: %v", cmd, err)
	}
}

// next gives the next dropped packet and where it was dropped.
func (m *monitor) next() (symbol string, payload []byte, err error) {
	const header = 4
	msgs, err := m.alerts.Receive()
	for _, msg := range msgs {
		if len(msg.Data) < header || msg.Data[0] != dmPacketAlert {
			continue
		}
		attrs, err := mdlayher.NewAttributeDecoder(msg.Data[header:])
		if err != nil {
			return "", nil, err
		}
		for attrs.Next() {
			switch attrs.Type() {
			case dmAttrSymbol:
				symbol = attrs.String()
			case dmAttrPayload:
				payload = attrs.Bytes()
			}
		}
		return symbol, payload, attrs.Err()
	}
	if err == nil && len(msgs) == 0 {
		err = errors.New("no message")
	}
	return "", nil, err
}
