/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Changes of packets with plain headers, and their checksums, in place. */
#pragma once

#include "keep.h"

/* changed is a checksum of a sum that changed (RFC 1624, eqn. 3). */
static __always_inline __u16 changed(__u16 check, __u16 by)
{
	return ~csum_fold((__u64)(__u16)~check + by);
}

static __always_inline void set_macs(void *data, const struct decision *d)
{
	struct ethhdr *eth = data;

	__builtin_memcpy(eth->h_dest, d->dmac, sizeof(eth->h_dest));
	__builtin_memcpy(eth->h_source, d->smac, sizeof(eth->h_source));
}

/* set_addresses forwards an IP header: the addresses, and one hop less. */
static __always_inline bool set_addresses(void *l3, void *end, bool ipv6, const struct decision *d)
{
	struct ipv6hdr *ip6 = l3;
	struct iphdr *ip = l3;

	if (ipv6) {
		if ((void *)(ip6 + 1) > end)
			return false;
		ip6->hop_limit--;
		for (int i = 0; i < 4; i++) {
			ip6->saddr[i] = d->src.w[i];
			ip6->daddr[i] = d->dst.w[i];
		}
		return true;
	}
	if ((void *)(ip + 1) > end)
		return false;
	ip->ttl--;
	ip->check = changed(ip->check, d->l3_sum);
	ip->saddr = d->src.w[3];
	ip->daddr = d->dst.w[3];
	return true;
}

static __always_inline bool set_ports(void *l4, void *end, const struct decision *d)
{
	__be16 *ports = l4;

	if ((void *)(ports + 2) > end)
		return false;
	ports[0] = d->sport;
	ports[1] = d->dport;
	return true;
}

/* never_zero reports whether a checksum of 0 says that there is none (RFC 768, 3828): 0xffff stands for it. */
static __always_inline bool never_zero(__u8 protocol)
{
	return protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE;
}

/* set_checksum mends that of a transport. */
static __always_inline bool set_checksum(void *l4, void *end, const struct packet *p, const struct decision *d)
{
	__u16 *check, by = csum_fold((__u64)d->l4_sum + d->ports_sum);
	__u32 at = p->check_at;

	if (!at || !by)
		return true;
	barrier_var(at); /* what is known of a word that was kept on the stack is lost (before Linux 5.16) */
	check = l4 + (at & 31);
	if ((void *)(check + 1) > end)
		return false;
	*check = changed(*check, by);
	if (never_zero(p->flow.protocol) && !*check)
		*check = 0xffff;
	return true;
}
