/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the program at XDP does with a frame. */
#pragma once

#include "rewrite.h"

/* forward_frame changes a frame and sends it on. */
static __always_inline int forward_frame(struct xdp_md *ctx, const struct packet *p, const struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *l3 = data + sizeof(struct ethhdr), *l4 = l3;
	bool ipv6 = p->flags & IPV6;

	l4 += ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (l4 > end || (p->flags & PORTS && l4 + 4 > end))
		return XDP_PASS;
	if (!set_checksum(l4, end, p, d))
		return XDP_PASS; /* cut off */
	if (p->flags & PORTS)
		set_ports(l4, end, d);
	set_addresses(l3, end, ipv6, d);
	set_macs(data, d);
	account(d, 1, p->length);
	return bpf_redirect(d->out, 0);
}

/* is_ours reports whether a frame is for this host: a device may hear others. */
static __always_inline bool is_ours(const struct xdp_md *ctx, const struct ethhdr *eth)
{
	__u32 index = ctx->ingress_ifindex;
	const struct mac *own = bpf_map_lookup_elem(&macs, &index);
	const __u16 *a = (const __u16 *)eth->h_dest, *b;

	if (!own || !own->known)
		return false;
	b = (const __u16 *)own->address;
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}
