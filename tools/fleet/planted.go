package main

import (
	"time"

	"github.com/natkit/natkit/internal/table"
)

// The address that the planted part of the log is about.
const (
	plantedAddress = "203.0.113.9"
	plantedSixth   = "2001:db8:64::9"
)

// use is a connection of the planted log: what is logged of it is its events.
type use struct {
	node, netns    string
	client, server string
	started, ended time.Duration // from the last midnight
	starts, ends   int           // how often its rows were sent
	block          bool
	address        string
	port           int32
	protocol       string
	noStart        bool // the log does not know when it began
	// present is when it was there, of one that was there when the log began.
	present time.Duration
}

// planted is what happened at 203.0.113.9, where two nodes take turns.
var planted = []use{
	// Across midnight: its start and its end are in different days' files.
	{node: "edge-1", client: "10.0.0.7", server: "198.19.0.1", started: -30 * time.Second, ended: 20 * time.Second, starts: 1, ends: 1, port: 40001},
	// Sent twice.
	{node: "edge-1", client: "10.0.0.8", server: "198.19.0.1", started: time.Hour, ended: time.Hour + 5*time.Second, starts: 2, ends: 3, port: 40001},
	// Given again 10 s later on the same node, and 3 s after that by the other node.
	{node: "edge-1", client: "10.0.0.9", server: "198.19.0.1", started: time.Hour + 15*time.Second, ended: time.Hour + 20*time.Second, starts: 1, ends: 1, port: 40001},
	{node: "edge-2", client: "10.9.0.1", server: "198.19.0.1", started: time.Hour + 23*time.Second, ended: time.Hour + 50*time.Second, starts: 1, ends: 1, port: 40001},
	// On both nodes at once: by a clock that is 1 s behind, or really.
	{node: "edge-1", client: "10.0.0.9", server: "198.19.0.1", started: time.Hour + 49*time.Second, ended: time.Hour + 55*time.Second, starts: 1, ends: 1, port: 40001},
	// The same port to another destination at the same time.
	{node: "edge-1", client: "10.0.0.10", server: "198.19.0.2", started: time.Hour, ended: 2 * time.Hour, starts: 1, ends: 1, port: 40001},
	// No end was logged: it is over when the port is given again.
	{node: "edge-1", client: "10.0.0.11", server: "198.19.0.3", started: 3 * time.Hour, starts: 1, port: 40001},
	{node: "edge-1", client: "10.0.0.12", server: "198.19.0.3", started: 4 * time.Hour, starts: 1, port: 40001},
	// No start was logged.
	{node: "edge-1", client: "10.0.0.13", server: "198.19.0.4", ended: 30 * time.Minute, ends: 1, port: 40001, noStart: true},
	// Those that were there when the log began, at another port: one that ended, and another one with the same addresses; one that
	// ended unseen, and who had the port after it; one of two runs of the log.
	{node: "edge-1", client: "10.0.0.20", server: "198.19.0.5", present: 6 * time.Hour, ended: 7 * time.Hour, starts: 2, ends: 2, port: 40010, noStart: true},
	{node: "edge-1", client: "10.0.0.20", server: "198.19.0.5", present: 8 * time.Hour, starts: 1, port: 40010, noStart: true},
	{node: "edge-1", client: "10.0.0.21", server: "198.19.0.6", started: 5 * time.Hour, starts: 1, port: 40010},
	{node: "edge-1", client: "10.0.0.22", server: "198.19.0.6", present: 6 * time.Hour, starts: 1, port: 40010, noStart: true},
	{node: "edge-1", client: "10.0.0.23", server: "198.19.0.7", present: 5 * time.Hour, starts: 1, port: 40010, noStart: true},
	{node: "edge-1", client: "10.0.0.23", server: "198.19.0.7", present: 6 * time.Hour, ended: 7 * time.Hour, starts: 1, ends: 1, port: 40010, noStart: true},
	// Another namespace of the node has the same address.
	{node: "edge-1", netns: "blue", client: "10.0.0.7", server: "198.19.0.1", started: time.Hour, ended: time.Hour + 3*time.Second, starts: 1, ends: 1, port: 40001},
	{node: "edge-1", client: "10.0.0.7", server: "198.19.0.1", started: time.Hour, ended: time.Hour + time.Minute, starts: 1, ends: 1, port: 40001, protocol: "udp"},
	// Blocks by rule: one that lasts, one that ended.
	{node: "edge-2", client: "10.9.0.2", started: 5 * time.Hour, starts: 1, port: 40000, block: true},
	{node: "edge-2", client: "10.9.0.3", started: 2 * time.Hour, ended: 150 * time.Minute, starts: 1, port: 40000, block: true},
	// The port beside it.
	{node: "edge-1", client: "10.0.0.99", server: "198.19.0.1", started: time.Hour, ended: 2 * time.Hour, starts: 1, ends: 1, port: 40002},
	// IPv6; 60 s between two uses is not within TIME_WAIT, a microsecond less is.
	{node: "edge-1", client: "2001:db8:1::7", server: "2001:db8:5e::1", started: time.Hour, ended: time.Hour + time.Second, starts: 1, ends: 1, port: 5000, address: plantedSixth},
	{node: "edge-1", client: "2001:db8:1::8", server: "2001:db8:5e::1", started: time.Hour + 61*time.Second, ended: time.Hour + 62*time.Second, starts: 1, ends: 1, port: 5000, address: plantedSixth},
	{node: "edge-1", client: "2001:db8:1::9", server: "2001:db8:5e::1", started: time.Hour + 122*time.Second - time.Microsecond, ended: time.Hour + 123*time.Second, starts: 1, ends: 1, port: 5000, address: plantedSixth},
}

// Planted are its rows.
func (f Fleet) Planted() (rows []table.NATLog) {
	for _, u := range planted {
		row := table.NATLog{Event: "start", Protocol: "tcp", Src: u.client, Sport: 33333, NATAddress: plantedAddress, NATPort: u.port, NATPortLast: u.port, Dst: u.server, Dport: 443}
		row.Head = table.Head{Node: u.node, Kernel: oldKernel, Netns: u.netns}
		if u.protocol != "" {
			row.Protocol = u.protocol
		}
		if u.address != "" {
			row.NATAddress = u.address
		}
		if !u.noStart {
			row.Started = table.TimeOf(f.last().Add(u.started))
		}
		if u.block {
			row.Event, row.Protocol, row.Sport, row.Dst, row.Dport = "block", "", 0, "", 0
			row.NATPortLast = u.port + 63
			if u.ended > 0 {
				row.Ended = table.TimeOf(f.last().Add(u.ended))
			}
		}
		if row.Time = row.Started; u.present > 0 {
			row.Time = table.TimeOf(f.last().Add(u.present))
		}
		for range u.starts {
			rows = append(rows, row)
		}
		row.Event, row.Ended = "end", table.TimeOf(f.last().Add(u.ended))
		row.Time = row.Ended
		for range u.ends {
			rows = append(rows, row)
		}
	}
	return rows
}
