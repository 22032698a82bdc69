package load

import (
	"fmt"
)

// Reason is why a request failed: an errno below 4096, one of the constants
// here, or a status from StatusReason. It is a number so that failing costs a
// worker no memory.
type Reason uint32

// Reasons that no errno has.
const (
	// TimedOut is the run's own limit; the kernel's ETIMEDOUT reads the same.
	TimedOut Reason = 4096 + iota
	// TimedOutQueued happens in open loops: the time was over before a
	// connection of the allowed number was free.
	TimedOutQueued
	// NotClosed is a complete response after which the server did not close,
	// though it was asked to (HTTP/1.0).
	NotClosed
	// ClosedEarly is an end of the stream before any byte of the response.
	ClosedEarly
	// Truncated is an end of the stream inside a response.
	Truncated
	// Surplus is data after the end of a response.
	Surplus
	// Malformed is not HTTP/1.x.
	Malformed
	// BadFraming is a Content-Length, Transfer-Encoding or chunk that contradicts
	// the standard.
	BadFraming
	// OversizedHead is a response head above 64 KiB.
	OversizedHead
	// Prohibited is an ICMPv6 error that a firewall sent; the kernel makes EACCES of
	// it (net/ipv6/icmp.c, tab_unreach), as of what this machine forbids.
	Prohibited
)

const (
	firstStatus = 8192
	etimedout   = 110
)

// StatusReason stands for a response with another status than 2xx.
func StatusReason(status int) Reason { return Reason(firstStatus + status) }

// Timeout reports whether the request failed by its time being over.
func (r Reason) Timeout() bool {
	return r == TimedOut || r == TimedOutQueued || r == NotClosed || r == etimedout
}

// reasonText has Linux's errno values by number (include/uapi/asm-generic/errno.h)
// because they are data here, not system calls.
var reasonText = map[Reason]string{
	TimedOut:       "timed out",
	TimedOutQueued: "timed out before a connection was free",
	NotClosed:      "timed out: response complete, but the server did not close",
	ClosedEarly:    "closed without a response",
	Truncated:      "closed inside the response",
	Surplus:        "more data than announced",
	Malformed:      "not HTTP/1.x",
	BadFraming:     "bad Content-Length or chunk",
	OversizedHead:  "header too large",
	Prohibited:     "administratively prohibited",
	1:              "forbidden on this machine", // EPERM: netfilter's or a security module's no
	12:             "no memory",                 // ENOMEM
	13:             "forbidden on this machine", // EACCES
	22:             "invalid argument",          // EINVAL
	23:             "no file descriptor",        // ENFILE
	24:             "no file descriptor",        // EMFILE
	32:             "reset",                     // EPIPE
	71:             "protocol error",            // EPROTO
	90:             "message too long",          // EMSGSIZE
	97:             "address family not supported",
	98:             noLocalPort,           // EADDRINUSE
	99:             noLocalPort,           // EADDRNOTAVAIL
	100:            "network down",        // ENETDOWN
	101:            "network unreachable", // ENETUNREACH
	103:            "aborted",             // ECONNABORTED
	104:            "reset",               // ECONNRESET
	105:            "no memory",           // ENOBUFS
	110:            "timed out",           // ETIMEDOUT
	111:            "refused",             // ECONNREFUSED
	112:            "host down",           // EHOSTDOWN
	113:            "unreachable",         // EHOSTUNREACH
}

const noLocalPort = "no local port"

// NoLocalPort reports whether the machine ran out of ports or addresses to send from.
func (r Reason) NoLocalPort() bool { return r.String() == noLocalPort }

func (r Reason) String() string {
	if s, ok := reasonText[r]; ok {
		return s
	}
	if r >= firstStatus {
		return fmt.Sprintf("status %d", r-firstStatus)
	}
	return fmt.Sprintf("errno %d", uint32(r))
}
