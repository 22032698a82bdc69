/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is looked at of an skb, with the kernel's types and without them. */
#pragma once

#include "tables.h"

struct packet {
	__u64 skb;
	unsigned char *head;
	__u32 netns;
	__u32 ifindex;
	__u32 length;
	__u32 tail;
	__u16 network_header;
	__be16 protocol;
};

/* Inodes of namespaces are above PROC_DYNAMIC_FIRST, or a few below it
 * (linux/proc_fs.h, nsfs.h). What is not was none: an skb in a socket's queue or tree
 * has other things in the place of dev. */
#define LEAST_INODE 0xe0000000

static __always_inline void look(struct sk_buff *skb, struct packet *p)
{
	struct net_device *dev = skb->dev;

	p->netns = dev->nd_net.net->ns.inum;
	if (likely(p->netns >= LEAST_INODE)) {
		p->ifindex = dev->ifindex;
	} else {
		struct sock *sk = skb->sk;

		p->netns = sk ? sk->__sk_common.skc_net.net->ns.inum : 0; /* newer verifiers want the check */
		p->ifindex = skb->skb_iif;
		if (p->netns < LEAST_INODE)
			p->netns = 0;
	}
	p->skb = (__u64)skb;
	p->head = skb->head;
	p->length = skb->len;
	p->tail = skb->tail;
	p->network_header = skb->network_header;
	p->protocol = skb->protocol;
}

/* probe is look for a program whose arguments have no BTF types. */
static __always_inline void probe(struct sk_buff *skb, struct packet *p)
{
	struct net_device *dev = READ(skb, dev);
	struct net *net = READ(dev, nd_net.net);

	p->netns = READ(net, ns.inum);
	if (likely(p->netns >= LEAST_INODE)) {
		p->ifindex = READ(dev, ifindex);
	} else {
		struct sock *sk = READ(skb, sk);

		net = READ(sk, __sk_common.skc_net.net);
		p->netns = READ(net, ns.inum);
		p->ifindex = READ(skb, skb_iif);
		if (p->netns < LEAST_INODE)
			p->netns = 0;
	}
	p->skb = (__u64)skb;
	p->head = READ(skb, head);
	p->length = READ(skb, len);
	p->tail = READ(skb, tail);
	p->network_header = READ(skb, network_header);
	p->protocol = READ(skb, protocol);
}

/* protocol_of reads one byte of the header. */
static __always_inline __u32 protocol_of(const struct packet *p)
{
	__u32 l3 = ntohs(p->protocol);
	__u32 at = l3 == ETH_P_IP ? 9 : 6;
	__u8 proto;

	if ((l3 != ETH_P_IP && l3 != ETH_P_IPV6) || !p->network_header)
		return l3 << 16;
	if (bpf_probe_read_kernel(&proto, 1, p->head + p->network_header + at))
		return l3 << 16;
	return l3 << 16 | PROTOCOL_KNOWN | proto;
}
