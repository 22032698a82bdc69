//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Counts packets that end between source NAT and the connection tracker's confirmation.

#include "../include/skb.h"
#include "../include/tracked.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 only_netns;

/* The fields that identify the rule that translated a connection. The client's port and the
 * translated one do not: without them a storm of attempts takes little room. */
struct connection {
	__be32 from[4];
	__be32 to[4];
	__be32 answers_from[4];
	__be32 answers_to[4];
	__be16 to_port;
	__be16 answers_from_port;
	__u16 family;
	__u8 protocol;
	__u8 pad;
};

/* Makes bpf2go see the type. */
const struct connection *const connection_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set before loading */
	__type(key, struct connection);
	__type(value, __u64);
} connections SEC(".maps");

/* Packets whose connection found no room there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} overflow SEC(".maps");

static __always_inline void count(const struct connection *c)
{
	__u64 none = 0, *packets;
	__u32 zero = 0;

	bpf_map_update_elem(&connections, c, &none, BPF_NOEXIST);
	packets = bpf_map_lookup_elem(&connections, c);
	if (!packets)
		packets = bpf_map_lookup_elem(&overflow, &zero);
	if (packets)
		__sync_fetch_and_add(packets, 1);
}

/* is_lost: NAT is through with the source (nf_nat_setup_info), and the tracker does not
 * have the connection yet (__nf_conntrack_confirm). */
static __always_inline bool is_lost(struct nf_conn *ct)
{
	struct net *net;

	if (!(READ(ct, status) & IPS_SRC_NAT_DONE) || is_hashed(ct))
		return false;
	net = READ(ct, ct_net.net);
	return READ(net, ns.inum) == only_netns;
}

SEC("raw_tp/kfree_skb")
int unconfirmed(__u64 *ctx)
{
	struct sk_buff___tracked *skb = (void *)ctx[0];
	struct nf_conn *ct = (void *)(READ(skb, _nfct) & ~(unsigned long)NFCT_INFOMASK);
	struct nf_conntrack_tuple original, reply;
	struct connection c = {};

	if (!ct || !is_lost(ct))
		return 0;
	original = READ(ct, tuplehash[0].tuple);
	reply = READ(ct, tuplehash[1].tuple);
	__builtin_memcpy(c.from, original.saddr, sizeof(c.from));
	__builtin_memcpy(c.to, original.daddr, sizeof(c.to));
	__builtin_memcpy(c.answers_from, reply.saddr, sizeof(c.answers_from));
	__builtin_memcpy(c.answers_to, reply.daddr, sizeof(c.answers_to));
	c.to_port = original.dport;
	c.answers_from_port = reply.sport;
	c.family = original.l3num;
	c.protocol = original.protonum;
	count(&c);
	return 0;
}
