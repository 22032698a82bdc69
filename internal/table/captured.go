package table

import "github.com/natkit/natkit/internal/pcap"

// ConnectionRow is that of a connection in a capture.
func ConnectionRow(node string, c *pcap.Connection) Connection {
	row := Connection{Head: Head{Node: node, Time: TimeOf(c.First)}, Protocol: "tcp",
		Client: addressOf(c.Client.Addr()), ClientPort: int32(c.Client.Port()), Server: addressOf(c.Server.Addr()), ServerPort: int32(c.Server.Port()),
		Ended: TimeOf(c.Last), Outcome: c.Outcome, Closed: string(c.Closed), SYNs: int32(c.SYNs), Retransmissions: c.Retransmissions,
		ClientPackets: c.FromClient.Packets, ClientBytes: c.FromClient.Bytes, ServerPackets: c.FromServer.Packets, ServerBytes: c.FromServer.Bytes}
	if c.Begun {
		row.Started = row.Time
	}
	if c.Handshake > 0 {
		row.HandshakeUS = new(c.Handshake.Microseconds())
	}
	return row
}

// IncidentRow is that of an incident in a capture.
func IncidentRow(node string, i *pcap.Incident) Incident {
	about := i.Kind.About()
	row := Incident{Head: Head{Node: node, Time: TimeOf(i.Time)}, Kind: string(i.Kind), Fault: about.Fault, Text: about.What,
		Client: addressOf(i.Client.Addr()), ClientPort: int32(i.Client.Port()), Server: addressOf(i.Server.Addr()), ServerPort: int32(i.Server.Port()),
		Frame: i.Frame, Outcome: string(i.Outcome), SYNs: int32(len(i.SYNs)), ConnectUS: microseconds(i.ConnectSeconds)}
	if n := len(i.SYNs); n > 0 {
		row.Verdict = string(i.SYNs[n-1].Verdict)
	}
	return row
}
