package capacity

import "math/bits"

const (
	// EndBytes is what one end of a TCP connection without data takes of a machine: its socket, file, entries in an
	// epoll and in the hashes of ports, its entry of a connection table and what a lean program keeps of it. 8,273 B of
	// the kernel's were measured for both ends on one machine, behind a gateway on it (docs/lab.md).
	EndBytes = 5 << 10
	// PageBytes is a page on most machines; the kernel counts TCP's memory in pages.
	PageBytes = 4096
	// BufferPages are the pages that a connection may take in any case: tcp_rmem[0] and tcp_wmem[0]
	// (Documentation/networking/ip-sysctl.rst), a page each.
	BufferPages = 2
	// SpareFiles are for what a program opens besides its connections, OtherFiles for other programs.
	SpareFiles = 1_000
	OtherFiles = 10_000
	// ReturnSeconds is the time in which all connections come back after a restart.
	ReturnSeconds = 60
	// LeastBacklog is somaxconn's default before Linux 5.4, MostBacklog what all kernels take.
	LeastBacklog = 128
	MostBacklog  = 65535
	// LocalPorts are those from 1024 to 65535, the longest useful ip_local_port_range.
	LocalPorts = PortsPerTuple
)

// Files is how many a program has open with so many connections: one for each, and some more.
func Files(connections int64) int64 { return ceil(float64(connections) + SpareFiles) }

// Backlog is how many connections may wait for accept(2): those of one second, after which a client whose SYN was
// dropped sends it again (TCP_TIMEOUT_INIT), rounded up to a power of two. They come at perSecond, or all within
// ReturnSeconds.
func Backlog(connections int64, perSecond float64) int64 {
	second := ceil(max(perSecond, float64(connections)/ReturnSeconds))
	return min(max(powerOfTwo(second), LeastBacklog), MostBacklog)
}

// TCPHash is the most buckets that the kernel gives TCP's hash table of connections at boot: one for 128 KiB of memory,
// rounded up to a power of two, 524,288 at most (tcp_init, net/ipv4/tcp.c). Limits of handshakes and of TIME_WAIT
// are parts of it. memoryBytes 0 means unknown.
func TCPHash(memoryBytes uint64) int64 {
	const most = 512 << 10
	if memoryBytes == 0 || memoryBytes>>17 >= most {
		return most
	}
	return powerOfTwo(int64(memoryBytes >> 17))
}

// powerOfTwo is the least from n on, at most 2^62.
func powerOfTwo(n int64) int64 {
	if n <= 1 {
		return 1
	}
	return 1 << min(bits.Len64(uint64(n-1)), 62)
}

// TCPPages is what the least buffers of connections take, in pages (net.ipv4.tcp_mem).
func TCPPages(connections int64) int64 { return ceil(float64(connections) * BufferPages) }

// SocketBytes is the memory of one end of so many connections with their least buffers.
func SocketBytes(connections int64) int64 {
	return ceil(float64(connections) * (EndBytes + BufferPages*PageBytes))
}

// WithHeadroom is a number that is expected, with room for a quarter more.
func WithHeadroom(expected float64) int64 { return ceil(expected * headroom) }
