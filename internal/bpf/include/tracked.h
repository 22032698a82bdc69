/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What our programs read of the connection tracker's own structures, by CO-RE as in skb.h. */
#pragma once

#include "skb.h"

enum {
	BPF_FIELD_EXISTS = 2, /* of __builtin_preserve_field_info */
};

enum {
	NFCT_INFOMASK = 7, /* the packet's place in its connection; above is the entry */
};

/* enum ip_conntrack_info and ip_conntrack_status (linux/netfilter/nf_conntrack_common.h) */
enum {
	IP_CT_ESTABLISHED = 0,
};

enum {
	IPS_ASSURED = 1 << 2,
	IPS_NAT_MASK = 1 << 4 | 1 << 5,
	IPS_SRC_NAT_DONE = 1 << 7,
	IPS_TEMPLATE = 1 << 11,
};

/* The kernel's layout, which is the same in all versions that there are: source and
 * destination are 20 bytes each. */
struct nf_conntrack_tuple {
	__be32 saddr[4];
	__be16 sport;
	__u16 l3num;
	__be32 daddr[4];
	__be16 dport;
	__u8 protonum;
	__u8 dir;
};

struct hlist_nulls_node {
	struct hlist_nulls_node **pprev;
} CO_RE;

struct nf_conntrack_tuple_hash {
	struct hlist_nulls_node hnnode;
	struct nf_conntrack_tuple tuple;
} CO_RE;

struct nf_conntrack_zone {
	__u16 id;
	__u8 dir; /* a bit for each direction that is in the zone */
} CO_RE;

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	struct nf_conntrack_zone zone; /* with CONFIG_NF_CONNTRACK_ZONES */
	unsigned long status;
	possible_net_t ct_net;
} CO_RE;

struct sk_buff___tracked {
	unsigned long _nfct;
} CO_RE;

/* is_hashed reports whether a connection is or was in the tracker's table. Until then the
 * place of the answers' pprev has their hash, of 32 bits (__nf_conntrack_alloc). The status
 * is no indicator: from Linux 5.19 to 6.15 IPS_CONFIRMED is set before it is known whether
 * the tuples are free. */
static __always_inline bool is_hashed(struct nf_conn *ct)
{
	return (__u64)READ(ct, tuplehash[1].hnnode.pprev) >> 32;
}

/* read_zones has the zones of both directions, 0 for the default one
 * (nf_ct_zone_id, include/net/netfilter/nf_conntrack_zones.h). */
static __always_inline void read_zones(struct nf_conn *ct, __u16 *first, __u16 *answer)
{
	__u16 id = 0;
	__u8 dir;

	*first = *answer = 0;
	if (__builtin_preserve_field_info(ct->zone, BPF_FIELD_EXISTS))
		id = READ(ct, zone.id);
	if (likely(!id))
		return;
	dir = READ(ct, zone.dir);
	*first = dir & 1 ? id : 0;
	*answer = dir & 2 ? id : 0;
}
