// Package ipvs understands what the kernel's load balancer writes below /proc/net, and
// compares two of its tables of connections: which tuples were used again, and whether
// they stayed on their real server. It reads nothing itself.
package ipvs
