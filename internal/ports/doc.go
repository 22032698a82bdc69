// Package ports tells how far the ports of the addresses that NAT gives are used
// up, towards each destination, and what the chance is that the kernel finds none
// for a new connection. It works on entries of the connection table and on rules
// that others have read.
package ports
