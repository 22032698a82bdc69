/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Internet checksums (RFC 1071). Sums are of 16-bit words in memory order, so the
 * byte order of the machine does not matter. */
#pragma once

#include "kernel.h"

/* csum_fold makes 16 bits of a sum of less than 2^48, of 16-bit and 32-bit words, not
 * complemented: 2^16 is 1 modulo 0xffff, so that halves may be added at any time. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum + (sum >> 16);
}

/* csum_ok reports whether a sum that includes the checksum folds to 0xffff. Before the
 * last step it is less than twice that. */
static __always_inline bool csum_ok(__u64 sum)
{
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

/* csum_udp is what goes into UDP's checksum field for a folded sum: 0 says "no
 * checksum" there, and stands for 0xffff (RFC 768). */
static __always_inline __u16 csum_udp(__u16 folded)
{
	__u16 check = ~folded;
	return check ? check : 0xffff;
}
