package pcp

import (
	"net/netip"
	"time"
)

// Limiter bounds how much is done for a host, and for all together, in a second.
type Limiter struct {
	// Each is for a host, All for all.
	Each, All int
	second    int64
	all       int
	hosts     map[netip.Addr]int
}

// Allows reports whether there is room for one more.
func (l *Limiter) Allows(now time.Time, host netip.Addr) bool {
	if second := now.Unix(); second != l.second || l.hosts == nil {
		l.second, l.all, l.hosts = second, 0, map[netip.Addr]int{}
	}
	if l.all >= l.All || l.hosts[host] >= l.Each {
		return false
	}
	l.all++
	l.hosts[host]++
	return true
}
